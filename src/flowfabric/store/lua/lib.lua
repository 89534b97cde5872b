-- What all functions share: time, indexes, the log, and what they tell the claimers.
--
-- A function works in one partition. Its one declared key is the partition's own record,
-- `<prefix>:{fp:N}`; every other key is made from it and so lies in the same slot. Reads and checks
-- come before the first write, and after that nothing raises. Nothing here decides: guards are
-- compared, patches are written, and indexes follow from the head.

local READY = {waiting = true, orphaned = true, revoked = true}
-- The index of ids is by how an execution ended; all that have not ended are together, so that only
-- the first and the last write of an execution touch it.
local CLASSES = {completed = 1, failed = 2, cancelled = 3, expired = 4, skipped = 5}
local OPEN = 0
-- The last lines of a history are with the head; when they are more than this they move to a list.
local RECENT_BYTES_MAX = 2000
local LOG_LINES_MAX = 1000
-- Lua's unpack stops at 8000 values.
local CELLS_MAX = 4000
local PRIORITY_MAX = 9000
-- A score is exact below 2^53: 9000 priorities times thirty years of milliseconds since 2017.
local AGE_SPAN_MS = 1e12
local AGE_FROM_MS = 15e11

local function whole(number)
  return string.format('%.0f', number)
end

-- The place in a ready queue: highest priority first, then oldest; equal ones go by their id.
local function place(head)
  local priority, created_ms = tonumber(head.priority) or 0, tonumber(head.created_ms) or 0
  local rank = PRIORITY_MAX - math.max(0, math.min(PRIORITY_MAX, priority))
  return rank * AGE_SPAN_MS + math.max(0, math.min(AGE_SPAN_MS - 1, created_ms - AGE_FROM_MS))
end

-- A lane of a namespace within a key; the length keeps ('a:b', 'c') apart from ('a', 'b:c').
local function queue_name(namespace, lane)
  return #namespace .. ':' .. namespace .. ':' .. lane
end

local function first_score(key)
  return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or ''
end

local function as_score(text)
  return text == '' and '' or whole(tonumber(text))
end

-- Begin: arguments 1 to 3 are the caller's time, a time that replaces the server's in tests, and
-- how far they may be apart. While a slot migrates, looking for a key that never exists raises
-- here, before anything is written. A partition's time never goes back.
local function open(base, args)
  redis.call('EXISTS', base .. ':canary')
  local at_ms = tonumber(args[2])
  if not at_ms then
    local clock = redis.call('TIME')
    at_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  end
  local seen = redis.call('HMGET', base, 'time_ms', 'version')
  at_ms = math.max(at_ms, tonumber(seen[1]) or 0)
  local is_off = math.abs(at_ms - tonumber(args[1])) > tonumber(args[3])
  return {
    is_open = true,
    base = base,
    number = string.match(base, '{fp:(%d+)}'),
    now = args[1],
    at_ms = at_ms,
    refusal = is_off and {'skew', at_ms} or nil,
    -- Numbers the writes of a partition, by its time: microseconds that count on by themselves.
    version = whole(math.max((tonumber(seen[2]) or 0) + 1, at_ms * 1000)),
    -- What is known of executions, which of them changed, and records that are written with them.
    heads = {},
    changed = {},
    values = {},
    texts = {},
    lines = {},
    added = {},
    removed = {},
    queues = {},
    flows = {},
    due = as_score(first_score(base .. ':due')),
  }
end

-- A record from its text. One that cannot be read has no columns, and its text is not lost.
local function decode(text)
  local is_read, record = pcall(cmsgpack.unpack, text)
  return is_read and type(record) == 'table' and record or {broken = text}
end

-- Read these records at once.
local function read_all(keys)
  if #keys <= CELLS_MAX then
    return #keys > 0 and redis.call('MGET', unpack(keys)) or {}
  end
  local texts = {}
  for first = 1, #keys, CELLS_MAX do
    local last = math.min(first + CELLS_MAX - 1, #keys)
    for place, text in ipairs(redis.call('MGET', unpack(keys, first, last))) do
      texts[first + place - 1] = text
    end
  end
  return texts
end

local function read_texts(base, ids)
  local keys = {}
  for place, uuid in ipairs(ids) do
    keys[place] = base .. ':x:' .. uuid
  end
  return read_all(keys)
end

-- The head of an execution as it is by now, or false; changed by whoever marks it as changed.
local function head_of(scope, uuid)
  local head = scope.heads[uuid]
  if head == nil then
    local text = scope.texts[uuid] or redis.call('GET', scope.base .. ':x:' .. uuid)
    head = text and decode(text)
    scope.heads[uuid] = head
  end
  return head
end

local function ready_key(scope, namespace, lane)
  return scope.base .. ':ready:' .. queue_name(namespace, lane)
end

-- Remember how a ready queue begins, to tell afterwards whether that changed.
local function watch(scope, head)
  local name = queue_name(head.namespace or '', head.lane or '')
  if scope.queues[name] == nil then
    scope.queues[name] = as_score(first_score(scope.base .. ':ready:' .. name))
  end
end

-- Keep a hint, unless a newer one is known. An empty score means that there is nothing.
local function tell(key, partition, version, score)
  local seen = redis.call('HGET', key .. ':version', partition)
  if seen and tonumber(seen) >= tonumber(version) then
    return
  end
  redis.call('HSET', key .. ':version', partition, version)
  if score == '' then
    redis.call('ZREM', key, partition)
  else
    redis.call('ZADD', key, score, partition)
  end
end

-- Many members of a sorted set are written by one command.
local function gather(sets, key, first, second)
  local cells = sets[key]
  if cells == nil then
    cells = {}
    sets[key] = cells
  end
  local size = #cells
  cells[size + 1], cells[size + 2] = first, second
end

-- An open line of a flow: its text by name, its place in the order of time, and when to try it.
-- Names begin with the time, so that equal times go by what follows.
local function put_line(scope, line)
  local base, name = scope.base, line.name
  redis.call('HSET', base .. ':line:' .. line.flow, name, line.text)
  gather(scope.added, base .. ':lines:' .. line.flow, string.match(name, '^%d+'), name)
  if line.next_try_ms == '0' then
    gather(scope.removed, base .. ':later:' .. line.flow, name)
  else
    gather(scope.added, base .. ':later:' .. line.flow, line.next_try_ms, name)
  end
  scope.flows[line.flow] = true
end

local function remove_line(scope, flow, name)
  redis.call('HDEL', scope.base .. ':line:' .. flow, name)
  gather(scope.removed, scope.base .. ':lines:' .. flow, name)
  gather(scope.removed, scope.base .. ':later:' .. flow, name)
  scope.flows[flow] = true
end

-- When a flow has something to do that somebody may do: nothing if never.
local function wake_time(base, flow)
  local cells = redis.call('HMGET', base .. ':flow:' .. flow,
    'created_ms', 'parked', 'due_ms', 'busy_until_ms', 'next_try_ms')
  if not cells[1] or cells[2] then
    return nil
  end
  local later = base .. ':later:' .. flow
  local at = tonumber(cells[3])
  if redis.call('ZCARD', base .. ':lines:' .. flow) > redis.call('ZCARD', later) then
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
      redis.call('ZADD', key, whole(at), flow)
    else
      redis.call('ZREM', key, flow)
    end
  end
  local after = as_score(first_score(key))
  return (before == '' or (after ~= '' and tonumber(after) < tonumber(before))) and after or ''
end

-- The lines of a head that has too many become older ones.
local function move_lines(key, head)
  local lines = {}
  for line in string.gmatch(head.log, '[^\n]+') do
    lines[#lines + 1] = line
  end
  if redis.call('RPUSH', key, unpack(lines)) > LOG_LINES_MAX then
    redis.call('LTRIM', key, -LOG_LINES_MAX, -1)
  end
  head.log = nil
end

local function write_records(scope)
  local values, texts, size = scope.values, scope.texts, #scope.values
  for uuid, head in pairs(scope.changed) do
    if head.log and #head.log > RECENT_BYTES_MAX then
      move_lines(scope.base .. ':log:' .. uuid, head)
    end
    local text = cmsgpack.pack(head)
    texts[uuid] = text
    values[size + 1], values[size + 2] = scope.base .. ':x:' .. uuid, text
    size = size + 2
  end
  for first = 1, size, CELLS_MAX do
    redis.call('MSET', unpack(values, first, math.min(first + CELLS_MAX - 1, size)))
  end
end

-- End: write the records, the indexes, the feed and the time, and tell what changed at the head of
-- the queues. With `hints`, the place of the hint keys when all keys are on one server, it is told
-- here; else the caller passes it on.
local function close(scope, hints)
  write_records(scope)
  for key, members in pairs(scope.removed) do
    redis.call('ZREM', key, unpack(members))
  end
  for key, cells in pairs(scope.added) do
    redis.call('ZADD', key, unpack(cells))
  end
  local partition, version, lines = scope.number, scope.version, scope.lines
  if #lines > 0 then
    redis.call('XADD', scope.base .. ':feed', version .. '-0', unpack(lines))
    redis.call('HSET', scope.base, 'time_ms', whole(scope.at_ms), 'version', version,
      'spot', version .. '-' .. #lines / 2, 'line', lines[#lines])
  else
    redis.call('HSET', scope.base, 'time_ms', whole(scope.at_ms), 'version', version)
  end
  local changed = {}
  for name, before in pairs(scope.queues) do
    local after = as_score(first_score(scope.base .. ':ready:' .. name))
    if after ~= before then
      changed[#changed + 1] = {'{hint:' .. name .. '}', partition, version, after}
    end
  end
  local due = as_score(first_score(scope.base .. ':due'))
  -- A hint that is too early is put right by whoever looks; one that is too late would be missed.
  if due ~= '' and (scope.due == '' or tonumber(due) < tonumber(scope.due)) then
    changed[#changed + 1] = {'{due}', partition, version, due}
  end
  local first = arm_flows(scope)
  if first ~= '' then
    changed[#changed + 1] = {'{flows}', partition, version, first}
  end
  if hints == '' then
    return changed
  end
  for _, change in ipairs(changed) do
    tell(hints .. change[1], change[2], change[3], change[4])
  end
  return {}
end

-- Move a record between the indexes; each is a function of the head, before and after.
local function index(scope, uuid, state, due_ms, head)
  local base = scope.base
  local class = CLASSES[head.state] or OPEN
  if not state or class ~= (CLASSES[state] or OPEN) then
    gather(scope.added, base .. ':ids', class, uuid)
  end
  if READY[head.state] then
    gather(scope.added, ready_key(scope, head.namespace or '', head.lane or ''), place(head), uuid)
  elseif READY[state] then
    gather(scope.removed, ready_key(scope, head.namespace or '', head.lane or ''), uuid)
  end
  if due_ms ~= head.due_ms then
    if head.due_ms then
      gather(scope.added, base .. ':due', head.due_ms, uuid)
    else
      gather(scope.removed, base .. ':due', uuid)
    end
  end
end

-- One line, in the history of its execution and, with all others of this write, in the feed of
-- its partition. A line is known by the write that it came with and its place among its lines.
local function log(scope, uuid, head, kind, detail)
  local lines, state = scope.lines, head.state or ''
  local size = #lines
  local told = '\t' .. scope.now .. '\t' .. kind .. '\t' .. (head.attempt or -1) .. '\t'
    .. (head.epoch or 0) .. '\t' .. detail
  lines[size + 1], lines[size + 2] = 'line', state .. '\t' .. uuid .. told
  head.log = (head.log or '') .. scope.version .. '-' .. size / 2 + 1 .. '\t' .. state .. told .. '\n'
end

local function append(list, more)
  for _, cell in ipairs(more) do
    list[#list + 1] = cell
  end
end

local function slice(args, first, count)
  return unpack(args, first, first + count - 1)
end

local function register(name, callback, flags)
  redis.register_function{
    function_name = 'ff@PROTOCOL@_' .. name, callback = callback, flags = flags or {},
  }
end

local READ_ONLY = {'no-writes'}
