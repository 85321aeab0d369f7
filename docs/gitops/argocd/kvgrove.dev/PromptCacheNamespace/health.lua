-- Health of a PromptCacheNamespace: Healthy when requests are answered by it as Git declares it, and nothing is under way.
local function answer(status, message)
  return { status = status, message = message }
end

if obj.metadata.deletionTimestamp ~= nil then
  return answer("Progressing", "it is being erased before it goes")
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
local function because(type, reasons)
  return found[type] ~= nil and reasons[found[type].reason] == true
end

if because("Ready", { Suspended = true }) then
  return answer("Suspended", told("Ready"))
end
if is("Stalled", "True") then
  return answer("Degraded", told("Stalled"))
end
if is("QuotaOK", "False") then
  return answer("Degraded", told("QuotaOK"))
end
if because("Promoted", { AwaitingApproval = true }) then
  return answer("Suspended", told("Promoted"))
end
if because("Promoted", { RolledBack = true, AnalysisFailed = true }) then
  return answer("Degraded", told("Promoted"))
end
if because("Ready", { NodeUnreachable = true, NodeFailed = true, NoNodes = true }) then
  return answer("Degraded", told("Ready"))
end
for _, type in ipairs({ "Ready", "Promoted", "InvalidationComplete", "ErasureVerified" }) do
  if not is(type, "True") then
    return answer("Progressing", told(type))
  end
end
return answer("Healthy", told("Ready"))
