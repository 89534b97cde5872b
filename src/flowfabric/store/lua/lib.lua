-- What all functions share: time, indexes, the log, and what they tell the claimers.
--
-- A function works in one partition. Its one declared key is the partition's own record,
-- `<prefix>:{fp:N}`; every other key is made from it and so lies in the same slot. Reads and checks
-- come before the first write, and after that nothing raises. Nothing here decides: guards are
-- compared, patches are written, and indexes follow from the row.

local READY = {waiting = true, orphaned = true, revoked = true}
-- The index of ids is by how an execution ended; all that have not ended are together, so that only
-- the first and the last write of an execution touch it.
local CLASSES = {completed = 1, failed = 2, cancelled = 3, expired = 4, skipped = 5}
local OPEN = 0
local PRIORITY_MAX = 9000
-- A score is exact below 2^53: 9000 priorities times thirty years of milliseconds since 2017.
local AGE_SPAN_MS = 1e12
local AGE_FROM_MS = 15e11

local function whole(value)
  return string.format('%.0f', value)
end

-- The same function with its last answers kept: numbers are small, or times that come often.
local KEPT_MAX = 1000
local function remembering(work)
  local kept, left = {}, 0
  return function(value)
    local answer = kept[value]
    if answer then
      return answer
    end
    answer = work(value)
    -- What is not equal to itself is no key.
    if answer and value == value then
      if left == 0 then
        kept, left = {}, KEPT_MAX
      end
      kept[value], left = answer, left - 1
    end
    return answer
  end
end

local text_of = remembering(whole)
local number_of = remembering(function(text)
  return tonumber(text)
end)

-- The place in a ready queue: highest priority first, then oldest; equal ones go by their id.
local function place(row)
  local priority, created_ms = row.priority or 0, row.created_ms or 0
  local rank = PRIORITY_MAX - math.max(0, math.min(PRIORITY_MAX, priority))
  return whole(rank * AGE_SPAN_MS + math.max(0, math.min(AGE_SPAN_MS - 1, created_ms - AGE_FROM_MS)))
end

-- A route of a namespace within a key; the length keeps ('a:b', 'c') apart from ('a', 'b:c').
local function queue_name(namespace, route)
  return #namespace .. ':' .. namespace .. ':' .. route
end

local function first_score(key)
  return call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or ''
end

local function as_score(text)
  return text == '' and '' or whole(tonumber(text))
end

local KEYS_FEW = 8

-- Add the places of keys that are there; where few of many are, whole groups are passed over.
local function add_present(places, keys, first, last)
  local size = last - first + 1
  local count = size
  if size > KEYS_FEW then
    count = size <= CELLS_MAX and call('EXISTS', unpack(keys, first, last)) or 1
  end
  if count > 0 and count * 4 < size then
    local middle = math.floor((first + last) / 2)
    add_present(places, keys, first, middle)
    add_present(places, keys, middle + 1, last)
    return
  end
  for place = first, count > 0 and last or 0 do
    places[#places + 1] = place
  end
end

-- The places of keys that are there, and of some others.
local function present(keys)
  local places = {}
  add_present(places, keys, 1, #keys)
  return places
end

-- Begin to look: while a slot migrates, looking for a key that never exists raises here.
local function visit(base)
  if is_cluster then
    call('EXISTS', base .. ':canary')
  end
  return base
end

-- What all partitions of one call share. Arguments 1 to 3 are the time of the caller's decision, a
-- time that replaces the server's in tests, and what the caller thinks the server's time to be.
local function begin(args)
  local at_ms = number_of(args[2])
  if not at_ms then
    local clock = call('TIME')
    at_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  end
  return {
    now = args[1],
    is_fixed = args[2] ~= '',
    caller_ms = number_of(args[3]),
    at_ms = at_ms,
    -- Records that are to be written, keys and texts.
    values = {n = 0},
  }
end

-- A partition that is to be written to; its record, if it has one, says when it was last written
-- to, the number of that write, where the last line is, and that line. Its time never goes back.
local function opened(base, record, shared)
  local time_ms, version, tail, spot = string.match(record or '', '^(%d+)\t(%d+)\t()(%S+)')
  local at_ms = math.max(shared.at_ms, tonumber(time_ms) or 0)
  local is_off = math.abs(at_ms - shared.caller_ms) > @SKEW_LIMIT_MS@
  return {
    is_open = true,
    base = base,
    now = shared.now,
    is_fixed = shared.is_fixed,
    at_ms = at_ms,
    refusal = is_off and {'skew', at_ms, shared.caller_ms} or nil,
    -- Numbers the writes of a partition, by its time: microseconds that count on by themselves.
    version = whole(math.max((tonumber(version) or 0) + 1, at_ms * 1000)),
    values = shared.values,
    -- Where the last line before this write is, that and what it says, and the lines of this one.
    spot = spot or '0-0',
    last = tail and part_of(record, tail) or '0-0\t',
    lines = {nil, nil, nil, nil, n = 0},
    -- By names of keys without their beginning, members of sorted sets.
    added = {},
    removed = {},
    queues = {},
    flows = {},
    -- By flow, how many members are in each state: as it is kept, until it changes.
    tallies = {},
    -- The soonest of the timers that are set, and of those that they replace.
    soonest_ms = false,
    replaced_ms = false,
  }
end

local function open(base, args, shared)
  visit(base)
  return opened(base, call('MGET', base)[1], shared or begin(args))
end

local function partition_of(scope)
  scope.number = scope.number or string.match(scope.base, '{fp:(%d+)}')
  return scope.number
end

local function id_of(scope, uuid)
  return '{fp:' .. partition_of(scope) .. '}:' .. uuid
end

local function queue_of(row)
  return queue_name(row.namespace or '', row.route or '')
end

local function ready_index(row)
  return ':ready:' .. queue_of(row)
end

-- Remember how a ready queue begins, to tell afterwards whether that changed.
local function watch(scope, queue)
  if scope.queues[queue] == nil then
    scope.queues[queue] = as_score(first_score(scope.base .. ':ready:' .. queue))
  end
end

-- Keep a hint, unless a newer one is known. An empty score means that there is nothing: that leaves
-- no version, as an older hint that comes later costs one look and goes away.
local function tell(key, partition, version, score)
  local seen = call('HGET', key .. ':version', partition)
  if seen and tonumber(seen) >= tonumber(version) then
    return
  end
  if score == '' then
    call('ZREM', key, partition)
  else
    call('HSET', key .. ':version', partition, version)
    call('ZADD', key, score, partition)
  end
end

-- Many members of a sorted set are written by one command.
local function gather(cells_by_name, name, first, second)
  local cells = cells_by_name[name]
  if not cells then
    cells = {nil, nil, nil, nil, n = 0}
    cells_by_name[name] = cells
  end
  local size = cells.n + 1
  cells[size] = first
  if second then
    size = size + 1
    cells[size] = second
  end
  cells.n = size
end

local function put(values, key, value)
  local size = values.n
  values[size + 1], values[size + 2], values.n = key, value, size + 2
end

-- An open line of a flow: its text by name, its place in the order of time, and when to try it.
-- Names begin with the time, so that equal times go by what follows.
local function put_line(scope, flow, name, next_try_ms, text)
  local base = scope.base
  local is_new = call('HSET', base .. ':line:' .. flow, name, text) == 1
  gather(scope.added, ':lines:' .. flow, string.match(name, '^%d+'), name)
  if next_try_ms ~= 0 then
    gather(scope.added, ':later:' .. flow, next_try_ms, name)
  elseif not is_new then
    gather(scope.removed, ':later:' .. flow, name)
  end
  scope.flows[flow] = true
end

local function remove_line(scope, flow, name)
  call('HDEL', scope.base .. ':line:' .. flow, name)
  gather(scope.removed, ':lines:' .. flow, name)
  gather(scope.removed, ':later:' .. flow, name)
  scope.flows[flow] = true
end

-- When a flow has something to do that somebody may do: nothing if never.
local function wake_time(base, flow)
  local cells = call('HMGET', base .. ':flow:' .. flow,
    'created_ms', 'parked', 'due_ms', 'busy_until_ms', 'next_try_ms')
  if not cells[1] or cells[2] then
    return nil
  end
  local later = base .. ':later:' .. flow
  local at = tonumber(cells[3])
  if call('ZCARD', base .. ':lines:' .. flow) > call('ZCARD', later) then
    at = 0
  else
    local line = tonumber(first_score(later))
    at = at and line and math.min(at, line) or at or line
  end
  return at and math.max(at, tonumber(cells[4]) or 0, tonumber(cells[5]) or 0)
end

-- Put the flows that were touched where their time is; answers when the first of all has one, if
-- that is sooner than it was.
local function arm_flows(scope)
  if next(scope.flows) == nil then
    return ''
  end
  local key = scope.base .. ':flows'
  local before = as_score(first_score(key))
  for flow in pairs(scope.flows) do
    local at = wake_time(scope.base, flow)
    if at then
      call('ZADD', key, whole(at), flow)
    else
      call('ZREM', key, flow)
    end
  end
  local after = as_score(first_score(key))
  return (before == '' or (after ~= '' and tonumber(after) < tonumber(before))) and after or ''
end

local function write_records(values)
  for first = 1, values.n, CELLS_MAX do
    call('MSET', unpack(values, first, math.min(first + CELLS_MAX - 1, values.n)))
  end
  values.n = 0
end

local function write_portions(verb, key, cells)
  local size = cells.n
  if size <= CELLS_MAX then
    return size > 0 and call(verb, key, unpack(cells, 1, size))
  end
  for first = 1, size, CELLS_MAX do
    call(verb, key, unpack(cells, first, math.min(first + CELLS_MAX - 1, size)))
  end
end

local function write_all(verb, base, cells_by_name)
  for name, cells in pairs(cells_by_name) do
    write_portions(verb, base .. name, cells)
  end
end

local function append(list, more)
  for _, cell in ipairs(more) do
    list[#list + 1] = cell
  end
end

-- How many members of a flow are in each state.
local function read_tally(text)
  local is_read, tally = pcall(cmsgpack.unpack, text or '')
  return is_read and type(tally) == 'table' and tally or {}
end

local function count(scope, flow, state, by)
  local tally = scope.tallies[flow]
  if type(tally) ~= 'table' then
    tally = read_tally(tally or call('GET', scope.base .. ':tally:' .. flow))
    scope.tallies[flow] = tally
  end
  local number = (tonumber(tally[state]) or 0) + by
  tally[state] = number ~= 0 and number or nil
end

local function write_tallies(scope)
  for flow, tally in pairs(scope.tallies) do
    if type(tally) == 'table' then
      put(scope.values, scope.base .. ':tally:' .. flow, pack(tally))
    end
  end
end

-- The first timer, if it is sooner than all that there were: nobody has been told of it.
local function sooner(scope)
  local soonest_ms, replaced_ms = scope.soonest_ms, scope.replaced_ms
  if not soonest_ms or (replaced_ms and replaced_ms <= soonest_ms) then
    return nil
  end
  local first_ms = tonumber(first_score(scope.base .. ':due'))
  return (not first_ms or soonest_ms < first_ms) and soonest_ms or nil
end

local function note_change(changed, scope, name, score)
  changed[#changed + 1] = {name, partition_of(scope), scope.version, score}
end

-- The lines of this write, in the feed; answers what a partition's record says of the last one.
local function write_lines(scope)
  local version, lines = scope.version, scope.lines
  if lines.n == 0 then
    return scope.last
  end
  call('XADD', scope.base .. ':feed', version .. '-0', 'prev', scope.spot,
    unpack(lines, 1, lines.n))
  return version .. '-' .. text_of(lines.n / 2) .. '\t' .. lines[lines.n]
end

-- Write everything but the records, which are left for one command; adds what changed at the head
-- of the queues to those changes.
local function finish(scope, changed)
  local base = scope.base
  -- A hint that is too early is put right by whoever looks; one that is too late would be missed.
  local due_ms = sooner(scope)
  if due_ms then
    note_change(changed, scope, '{due}', text_of(due_ms))
  end
  write_all('ZREM', base, scope.removed)
  write_all('ZADD', base, scope.added)
  write_tallies(scope)
  put(scope.values, base,
    text_of(scope.at_ms) .. '\t' .. scope.version .. '\t' .. write_lines(scope))
  for name, before in pairs(scope.queues) do
    local after = as_score(first_score(base .. ':ready:' .. name))
    if after ~= before then
      note_change(changed, scope, '{hint:' .. name .. '}', after)
    end
  end
  local first = arm_flows(scope)
  if first ~= '' then
    note_change(changed, scope, '{flows}', first)
  end
end

-- With `hints`, the place of the hint keys when all keys are on one server, tell here what changed:
-- nobody can know anything newer. Else the caller passes it on.
local function pass_on(hints, changes)
  if hints == '' then
    return changes
  end
  local versions, added, removed = {}, {}, {}
  for _, change in ipairs(changes) do
    local key, partition, score = hints .. change[1], change[2], change[4]
    if score == '' then
      gather(removed, key, partition)
    else
      gather(versions, key .. ':version', partition, change[3])
      gather(added, key, score, partition)
    end
  end
  for key, cells in pairs(versions) do
    call('HSET', key, unpack(cells))
  end
  write_all('ZREM', '', removed)
  write_all('ZADD', '', added)
  return {}
end

local function close(scope, hints)
  local changed = {}
  finish(scope, changed)
  write_records(scope.values)
  return pass_on(hints, changed)
end

local function slice(cells, first, count)
  return unpack(cells, first, first + count - 1)
end

local function register(name, callback, flags)
  local function bound(keys, args)
    if not call then
      bind()
    end
    return callback(keys, args)
  end
  redis.register_function{
    function_name = 'ff@PROTOCOL@_' .. name, callback = bound, flags = flags or {},
  }
end

-- In a look at indexes: an entry is as it should be, with this score, or not there.
local function set_right(run, index, name, score)
  local scope = run.scope
  local known = call('ZSCORE', scope.base .. index, name)
  if score == nil and known then
    gather(scope.removed, index, name)
  elseif score and (not known or tonumber(known) ~= tonumber(score)) then
    gather(scope.added, index, score, name)
  else
    return
  end
  run.repaired = run.repaired + 1
end

-- What the part of documents does for a look at indexes.
local documents = {}

local READ_ONLY = {'no-writes'}
-- What makes room is done also when there is none.
local WHEN_FULL = {'allow-oom'}
