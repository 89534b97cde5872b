-- Copies of what the records of a partition say, compared with the records and set right.
--
-- Whoever is in any index is looked at in all of them: what one has lost another still names. What
-- is too much in a ready queue is removed by whoever claims. The records are not touched.

local WALKS = {'ids', 'due', 'purge', 'unsettled', 'going', 'flows', 'documents'}
local TIMERS = {{column = 'due_ms', key = ':due'}, {column = 'purge_ms', key = ':purge'}}
local NAMES_FLOWS = {unsettled = true, going = true}
-- Members of a larger flow are counted only if their number is not what the counts say.
local COUNTED_MAX = 5000
local UNREADABLE = 'unreadable'

local function verify_absent(run, uuid)
  for _, index in ipairs(INDEXES) do
    set_right(run, index, uuid, nil)
  end
end

-- Every place that follows from the row; one that cannot be read stays where it is.
local function verify_head(run, uuid, text)
  local scope, row = run.scope, text and read_row(text)
  if run.seen[uuid] or (row and row.is_broken) then
    return
  end
  run.seen[uuid] = true
  if not row then
    return verify_absent(run, uuid)
  end
  set_right(run, ':ids', uuid, whole(CLASSES[row.state] or OPEN))
  for _, timer in ipairs(TIMERS) do
    local at_ms = row[timer.column]
    set_right(run, timer.key, uuid, at_ms and whole(at_ms))
  end
  time(scope, row.due_ms)
  watch(scope, queue_of(row))
  set_right(run, ready_index(row), uuid, READY[row.state] and place(row))
  if row.flow ~= '' then
    set_right(run, ':members:' .. row.flow, uuid, '0')
  end
end

-- Whether a flow is there is known to the index of all of them.
local function verify_named(run, flow)
  local base = run.scope.base
  local is_there = call('EXISTS', base .. ':flow:' .. flow) == 1
  set_right(run, ':flow_ids', flow, is_there and '0' or nil)
  if not is_there then
    set_right(run, ':unsettled', flow, nil)
    set_right(run, ':going', flow, nil)
  end
  run.flows[flow] = not is_there
end

-- Some of an index from a place on; answers where to go on, nothing at the end.
local function walk_index(run, name, first)
  local base, limit = run.scope.base, run.left
  local ids = call('ZRANGE', base .. ':' .. name, first, first + limit - 1)
  for number, text in ipairs(NAMES_FLOWS[name] and {} or read_texts(base, ids)) do
    verify_head(run, ids[number], text)
  end
  for _, flow in ipairs(NAMES_FLOWS[name] and ids or {}) do
    if run.flows[flow] == nil then
      verify_named(run, flow)
    end
  end
  run.left = run.left - #ids
  return #ids == limit and whole(first + #ids) or nil
end

-- With those that this call has found to be missing.
local function members_of(run, index)
  local ids = call('ZRANGE', run.scope.base .. index, 0, -1)
  local found = run.scope.added[index] or {n = 0}
  for position = 2, found.n, 2 do
    ids[#ids + 1] = found[position]
  end
  return ids
end

local function count_members(run, flow, ids)
  local base, counts = run.scope.base, {}
  for number, text in ipairs(read_texts(base, ids)) do
    local row = text and read_row(text)
    if row and (row.is_broken or row.flow == flow) then
      local state = row.is_broken and UNREADABLE or row.state
      counts[state] = (counts[state] or 0) + 1
    else
      gather(run.scope.removed, ':members:' .. flow, ids[number])
      run.repaired = run.repaired + 1
    end
    verify_head(run, ids[number], text)
  end
  return counts
end

local function sum_of(counts)
  local sum = 0
  for _, number in pairs(counts) do
    sum = sum + (tonumber(number) or 0)
  end
  return sum
end

local function are_equal(first, second)
  for name, value in pairs(first) do
    if second[name] ~= value then
      return false
    end
  end
  return true
end

local function verify_members(run, flow)
  local base = run.scope.base
  local key, size = base .. ':tally:' .. flow, call('ZCARD', base .. ':members:' .. flow)
  local known = read_tally(call('GET', key))
  if size > COUNTED_MAX and size == sum_of(known) then
    return
  end
  local counts = count_members(run, flow, members_of(run, ':members:' .. flow))
  if not (are_equal(known, counts) and are_equal(counts, known)) then
    run.tallies[key] = counts
    run.repaired = run.repaired + 1
  end
  run.left = run.left - size
end

local function verify_flow(run, flow)
  if run.flows[flow] then
    return
  end
  run.flows[flow] = true
  local base, key = run.scope.base, run.scope.base .. ':flow:' .. flow
  local is_there = call('EXISTS', key) == 1
  local cells = call('HMGET', key, 'settled', 'purge_ms')
  set_right(run, ':flow_ids', flow, is_there and '0' or nil)
  set_right(run, ':unsettled', flow, is_there and cells[1] ~= '1' and '0' or nil)
  set_right(run, ':going', flow, tonumber(cells[2]) and cells[2] or nil)
  local known, at_ms = call('ZSCORE', base .. ':flows', flow), wake_time(base, flow)
  if (tonumber(known) or false) ~= (at_ms or false) then
    run.scope.flows[flow] = true
    run.repaired = run.repaired + 1
  end
  verify_members(run, flow)
end

-- Flows by id after one of them; answers where to go on, nothing at the end.
local function walk_flows(run, after)
  local index, low = run.scope.base .. ':flow_ids', after == '' and '-' or '(' .. after
  local ids = call('ZRANGEBYLEX', index, low, '+', 'LIMIT', 0, PAGE)
  for _, flow in ipairs(ids) do
    if run.left <= 0 then
      return after
    end
    verify_flow(run, flow)
    run.left, after = run.left - 1, flow
  end
  return #ids == PAGE and after or nil
end

local function write_right(run, hints)
  local scope, changed = run.scope, {}
  for key, counts in pairs(run.tallies) do
    call('SET', key, pack(counts))
  end
  finish(scope, changed)
  documents.settle(run, changed)
  write_records(scope.values)
  return pass_on(hints, changed)
end

-- Arguments: 5 is how many records to look at, 6 where to begin and 7 after which of them; answers
-- how many entries were set right, how many records are left to look at, and where to go on. With
-- an argument 8 they are only counted.
register('verify', function(keys, args)
  local run = {scope = open(keys[1], args), left = tonumber(args[5]), repaired = 0}
  run.seen, run.flows, run.tallies, run.kinds, run.indexes = {}, {}, {}, {}, {}
  local number, after = 1, args[7]
  while WALKS[number] ~= args[6] and number < #WALKS do
    number = number + 1
  end
  local reached = {'', ''}
  while WALKS[number] do
    if run.left <= 0 then
      reached = {WALKS[number], after}
      break
    end
    local name = WALKS[number]
    if name == 'flows' then
      after = walk_flows(run, after)
    elseif name == 'documents' then
      after = documents.walk(run, after)
    else
      after = walk_index(run, name, tonumber(after) or 0)
    end
    number, after = after and number or number + 1, after or ''
  end
  local changes = run.repaired > 0 and not args[8] and write_right(run, args[4]) or {}
  return {'ok', run.scope.at_ms, {run.repaired, run.left, reached[1], reached[2]}, changes}
end)
