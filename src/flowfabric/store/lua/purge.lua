-- What may go, and its removal with all that it owns.
--
-- Everything is looked at before anything is removed. Lines of the feed go by age: up to the last
-- line of whoever went.

local OWN = {':x:', ':payload:', ':tags:', ':log:', ':entry:'}
local OWN_OF_MEMBER = {':edges:', ':groups:'}
local OWN_OF_FLOW = {
  ':flow:', ':members:', ':leaving:', ':line:', ':lines:', ':later:', ':tally:',
}
local INDEXES = {':ids', ':due', ':purge'}
local INDEXES_OF_FLOW = {':flow_ids', ':unsettled', ':going'}

-- Ids whose time has come (argument 4), soonest first, and those times.
local function passed(key, args)
  local found = call('ZRANGEBYSCORE', key, '-inf', args[4], 'WITHSCORES', 'LIMIT', 0, args[5])
  local ids, times = {}, {}
  for position = 1, #found, 2 do
    ids[#ids + 1], times[#times + 1] = found[position], as_score(found[position + 1])
  end
  return ids, times
end

-- Executions and flows whose time has come (argument 4), at most argument 5 of each: when it did,
-- and the revision of an execution, nothing if it is not there, or the columns of a flow.
register('departing', function(keys, args)
  local base, alone, flows = visit(keys[1]), {}, {}
  local ids, times = passed(base .. ':purge', args)
  for place, text in ipairs(read_texts(base, ids)) do
    alone[place] = {ids[place], times[place], text and whole(read_row(text).rev) or ''}
  end
  ids, times = passed(base .. ':going', args)
  for place, id in ipairs(ids) do
    flows[place] = {id, times[place], call('HGETALL', base .. ':flow:' .. id)}
  end
  return {alone, flows}
end, READ_ONLY)

-- What is known of somebody who may go. A key that somebody else has got by now is not his.
local function examined(scope, uuid, text)
  local one = {uuid = uuid, row = read_row(text), columns = columns_of(text)}
  local name = one.columns.key
  if name then
    local key = scope.base .. ':key:' .. queue_name(one.row.namespace or '', tostring(name))
    local cells = call('HMGET', key, 'id', 'until_ms')
    if cells[1] == id_of(scope, uuid) then
      one.key, one.until_ms = key, tonumber(cells[2])
    end
  end
  return one
end

-- Executions, each as an id and the revision it was seen with: those that go, and until when keys
-- keep others.
local function judge_alone(scope, args, first, past)
  local ids, going, kept = {}, {}, {}
  for position = first, past, 2 do
    ids[#ids + 1] = args[position]
  end
  for place, text in ipairs(read_texts(scope.base, ids)) do
    local seen = tonumber(args[first + place * 2 - 1])
    if text and read_row(text).rev == seen then
      local one = examined(scope, ids[place], text)
      if one.until_ms and one.until_ms > tonumber(scope.now) then
        kept[#kept + 1] = {one.uuid, one.until_ms}
      else
        going[#going + 1] = one
      end
    end
  end
  return going, kept
end

-- Flows, each as an id and the revision it was seen with: those that are so, with the members that
-- go, argument 5 of each at most.
local function judge_flows(scope, args, first)
  local flows, limit = {}, tonumber(args[5])
  for position = first, #args, 2 do
    local flow = {id = args[position], rev = tonumber(args[position + 1]), members = {}}
    if flow_holds(scope.base, flow.id, flow.rev) then
      local ids = call('ZRANGE', scope.base .. ':members:' .. flow.id, 0, limit)
      flow.is_left = #ids > limit
      ids[limit + 1] = nil
      for place, text in ipairs(read_texts(scope.base, ids)) do
        flow.members[place] = examined(scope, ids[place], text or '')
      end
      flows[#flows + 1] = flow
    end
  end
  return flows
end

-- Numbers of the write that an execution's last line came with.
local function last_write(scope, one)
  local line = one.columns.log or call('LINDEX', scope.base .. ':log:' .. one.uuid, -1)
  return tonumber(line and string.match(line, '^%d+')) or 0
end

local function forget_keys(scope, kinds, name)
  for _, kind in ipairs(kinds) do
    scope.dead[#scope.dead + 1] = scope.base .. kind .. name
  end
end

local function forget_indexes(scope, indexes, name)
  for _, index in ipairs(indexes) do
    gather(scope.removed, index, name)
  end
end

local function forget(scope, one)
  local uuid, row, dead = one.uuid, one.row, scope.dead
  forget_keys(scope, OWN, uuid)
  forget_indexes(scope, INDEXES, uuid)
  for number = 0, math.max(row.attempt or -1, row.next_attempt) do
    dead[#dead + 1] = scope.base .. ':attempt:' .. uuid .. ':' .. whole(number)
  end
  if one.key then
    dead[#dead + 1] = one.key
  end
  if READY[row.state] then
    watch(scope, queue_of(row))
    gather(scope.removed, ready_index(row), uuid)
  end
  scope.trimmed = math.max(scope.trimmed, last_write(scope, one))
end

-- Edges go with their downstream.
local function forget_member(scope, flow, one)
  local base, uuid = scope.base, one.uuid
  forget(scope, one)
  gather(scope.removed, ':members:' .. flow.id, uuid)
  for _, field in ipairs(call('HKEYS', base .. ':edges:' .. uuid)) do
    local upstream, group = string.match(field, '^edge:(.-):(.*)$')
    if upstream then
      gather(scope.removed, ':leaving:' .. flow.id, upstream .. ':' .. uuid .. ':' .. group)
    end
  end
  forget_keys(scope, OWN_OF_MEMBER, uuid)
  if one.row.state then
    count(scope, flow.id, one.row.state, -1)
  end
end

-- A flow of which something is left is not as it was seen any more.
local function forget_flow(scope, flow)
  for _, one in ipairs(flow.members) do
    forget_member(scope, flow, one)
  end
  scope.flows[flow.id] = true
  if flow.is_left then
    scope.risen[flow.id] = whole(flow.rev + 1)
    return
  end
  forget_keys(scope, OWN_OF_FLOW, flow.id)
  forget_indexes(scope, INDEXES_OF_FLOW, flow.id)
  scope.tallies[flow.id] = nil
end

-- A feed of which nothing is left says up to where it was.
local function trim(scope)
  local feed = scope.base .. ':feed'
  if call('XTRIM', feed, 'MINID', '=', whole(scope.trimmed) .. '-1') == 0 then
    return
  end
  if call('XLEN', feed) == 0 then
    call('XADD', feed, scope.version .. '-0', 'prev', scope.spot)
    scope.last = scope.spot .. '\t'
  end
end

local function write_removal(scope)
  for first = 1, #scope.dead, CELLS_MAX do
    call('UNLINK', unpack(scope.dead, first, math.min(first + CELLS_MAX - 1, #scope.dead)))
  end
  for id, rev in pairs(scope.risen) do
    call('HSET', scope.base .. ':flow:' .. id, 'rev', rev)
  end
  trim(scope)
end

-- Arguments: 5 is how many members of each flow may go, 6 how many executions follow, then flows.
-- Answers who is gone, who is kept until when, which flows are gone, and how many members went.
register('purge', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  scope.dead, scope.risen, scope.trimmed = {}, {}, 0
  local past = 6 + 2 * tonumber(args[6])
  local going, kept = judge_alone(scope, args, 7, past)
  local flows = judge_flows(scope, args, past + 1)
  local gone, gone_flows, members = {}, {}, 0
  for place, one in ipairs(going) do
    forget(scope, one)
    gone[place] = one.uuid
  end
  for _, flow in ipairs(flows) do
    forget_flow(scope, flow)
    members = members + #flow.members
    if not flow.is_left then
      gone_flows[#gone_flows + 1] = flow.id
    end
  end
  local answer = {'ok', scope.at_ms, {gone, kept, gone_flows, members}, {}}
  if #going + #flows > 0 then
    write_removal(scope)
    answer[4] = close(scope, args[4])
  end
  return answer
end, WHEN_FULL)
