{{/* Names. A release named kvgrove has objects named kvgrove-*, as docs and runbooks write them. */}}
{{- define "kvgrove.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvgrove.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "kvgrove.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvgrove.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* (list context component) -> labels of an object. */}}
{{- define "kvgrove.labels" -}}
{{- $ := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
{{ include "kvgrove.selector" . }}
{{- end -}}

{{/* (list context component) -> what never changes, for selectors. */}}
{{- define "kvgrove.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "kvgrove.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* The Pods of daemons are labelled by the operator, which knows nothing of a release. */}}
{{- define "kvgrove.daemonSelector" -}}
app.kubernetes.io/name: kvgrove
app.kubernetes.io/component: daemon
app.kubernetes.io/managed-by: kvgrove-operator
{{- end -}}

{{/* (list context image) -> a reference. */}}
{{- define "kvgrove.image" -}}
{{- $ := index . 0 -}}{{- $image := index . 1 -}}
{{- $name := printf "%s/%s" $.Values.image.registry $image.repository -}}
{{- if $image.digest -}}{{ $name }}@{{ $image.digest }}{{- else -}}{{ $name }}:{{ default $.Chart.AppVersion $image.tag }}{{- end -}}
{{- end -}}

{{/* (list context component) -> the name of its ServiceAccount. */}}
{{- define "kvgrove.serviceAccount" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
{{- $account := (index $.Values $component).serviceAccount -}}
{{- default (ternary (printf "%s-%s" (include "kvgrove.fullname" $) $component) "default" $account.create) $account.name -}}
{{- end -}}

{{/* Where members dial the operator. */}}
{{- define "kvgrove.control" -}}
tcp://{{ include "kvgrove.fullname" . }}-operator.{{ .Release.Namespace }}.svc:7400
{{- end -}}

{{/* What Pod Security `restricted` asks of a Pod ... */}}
{{- define "kvgrove.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* ... and of a container. */}}
{{- define "kvgrove.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* (list context component) -> where a Pod of it may run. */}}
{{- define "kvgrove.placement" -}}
{{- $ := index . 0 -}}{{- $of := index $.Values (index . 1) -}}
{{- with $.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
nodeSelector: {{- merge (dict "kubernetes.io/os" "linux") $of.nodeSelector | toYaml | nindent 2 }}
{{- with $of.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Egress to name servers, for a NetworkPolicy. */}}
{{- define "kvgrove.dnsEgress" -}}
- to: {{- toYaml .Values.networkPolicy.dns | nindent 2 }}
  ports:
  - {protocol: UDP, port: 53}
  - {protocol: TCP, port: 53}
{{- end -}}

{{- /* Whether the operator keeps PodMonitors of daemons. */}}
{{- define "kvgrove.daemonMonitors" -}}
{{- if and .Values.monitoring.podMonitors.enabled (ne (int .Values.daemon.metricsPort) 0) }}true{{ end }}
{{- end }}
