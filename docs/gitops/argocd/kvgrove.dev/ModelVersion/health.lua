-- Health of a ModelVersion: Healthy when every node of its placement serves it.
local function answer(status, message)
  return { status = status, message = message }
end

if obj.metadata.deletionTimestamp ~= nil then
  return answer("Progressing", "it is being deleted; namespaces that use it hold it back")
end
if obj.status == nil or obj.status.conditions == nil then
  return answer("Progressing", "the operator has not looked at it yet")
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  return answer("Progressing", "the operator has not looked at the latest spec yet")
end

local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
local function is(type, status)
  return found[type] ~= nil and found[type].status == status
end
local function told(type)
  local condition = found[type]
  if condition == nil then
    return type .. " is missing"
  end
  if condition.message == nil or condition.message == "" then
    return condition.reason
  end
  return condition.reason .. ": " .. condition.message
end

for _, type in ipairs({ "Supported", "DigestsVerified" }) do
  if is(type, "False") and found[type].reason ~= "DigestsPending" then
    return answer("Degraded", told(type))
  end
end
if is("Stalled", "True") then
  return answer("Degraded", told("Stalled"))
end
if is("Ready", "True") then
  return answer("Healthy", told("Ready"))
end
local broken = { NodeUnreachable = true, NodeFailed = true, InvalidSpec = true }
if found.Ready ~= nil and broken[found.Ready.reason] then
  return answer("Degraded", told("Ready"))
end
return answer("Progressing", told("Ready"))
