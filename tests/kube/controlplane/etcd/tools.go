//go:build tools

// Package tools names the program that is built, so that go.mod and go.sum pin all it needs.
package tools

import _ "go.etcd.io/etcd/server/v3"
