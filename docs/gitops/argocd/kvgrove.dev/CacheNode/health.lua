-- Health of a CacheNode, which the operator writes: it shows below the DaemonSet that it belongs to, and in no one's Git.
local phases = {
  Pending = "Progressing",
  Ready = "Healthy",
  Draining = "Progressing",
  Unreachable = "Degraded",
  Gone = "Missing",
}
local phase = "Pending"
if obj.status ~= nil and obj.status.phase ~= nil then
  phase = obj.status.phase
end
return { status = phases[phase] or "Unknown", message = phase }
