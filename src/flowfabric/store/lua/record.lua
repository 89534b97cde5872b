-- An execution as one text: its flow, what functions look at, then all other columns.
--
-- The flow follows a byte that says how long it is; solo executions have none. The second part, the
-- front, has a fixed shape. The third is a map of MessagePack that is only ever added to: of a name
-- that is there twice the last one counts, so nothing has to be unpacked. Lines of its history are
-- among it, each under the name `log`. When it has become long it is put together anew, and its
-- lines move to a list of their own.
--
-- Executions with equal fronts are equal in everything that functions look at but their flow. What
-- is to be done is worked out once for each front, as a plan, and then copied.

local CELLS = '>HHc0Hc0Hc0Hc0Hc0Hc0ddddddddddddBH'
local CELLS_BYTES = 110
local BEHIND_ROUTE_BYTES = 99
local MAP, ARRAY = 222, 220
local PAIRS_MAX = 100
local LOG_LINES_MAX = 1000
-- Lua's unpack stops at 8000 values.
local CELLS_MAX = 4000

-- A global is looked up through several tables each time: what is used often is bound once, when
-- the first function is called.
local function globals()
  return redis.call, cjson, cmsgpack, struct, ipairs, math, pairs, pcall, string, table, tonumber,
    tostring, type, unpack
end
local call, cjson, cmsgpack, struct, ipairs, math, pairs, pcall, string, table, tonumber, tostring,
  type, unpack = nil
local pack, part_of, is_cluster
local function bind()
  call, cjson, cmsgpack, struct, ipairs, math, pairs, pcall, string, table, tonumber, tostring,
    type, unpack = globals()
  pack, part_of = cmsgpack.pack, string.sub
  local is_told, told = pcall(call, 'INFO', 'cluster')
  is_cluster = not (is_told and string.find(told, 'cluster_enabled:0', 1, true))
end

-- The front of a record, where it ends, and the flow.
local function front_of(text)
  local first = (string.byte(text) or 0) + 2
  local high, low = string.byte(text, first, first + 1)
  local last = low and first + high * 256 + low + 2 or #text
  return part_of(text, first, last), last, part_of(text, 2, first - 1)
end

-- What the front says, by the names of the columns; `count` is how many pairs follow it. Of one that
-- cannot be read nothing is known.
local function read_front(front)
  local is_read, _, state, reason, token, kind, namespace, route, rev, epoch, until_ms, due_ms,
    attempt, priority, created_ms, next_attempt, left_ms, deadline_ms, started_ms, purge_ms, _,
    count = pcall(struct.unpack, CELLS, front)
  if not is_read then
    return {rev = 1, epoch = 0, next_attempt = 0, is_broken = true}
  end
  return {
    state = state, reason = reason, lease_token = token, next_kind = kind, namespace = namespace,
    route = route, rev = rev, epoch = epoch, attempt = attempt, priority = priority,
    created_ms = created_ms, next_attempt = next_attempt, count = count,
    lease_until_ms = until_ms >= 0 and until_ms or nil, due_ms = due_ms >= 0 and due_ms or nil,
    attempt_left_ms = left_ms >= 0 and left_ms or nil,
    deadline_ms = deadline_ms >= 0 and deadline_ms or nil,
    started_ms = started_ms >= 0 and started_ms or nil,
    purge_ms = purge_ms >= 0 and purge_ms or nil,
  }
end

local function read_row(text)
  local front, _, flow = front_of(text)
  local row = read_front(front)
  row.flow = row.is_broken and '' or flow
  return row
end

local function write_front(row)
  local state, reason, token = row.state or '', row.reason or '', row.lease_token or ''
  local kind, namespace, route = row.next_kind or '', row.namespace or '', row.route or ''
  local offset = CELLS_BYTES + #state + #reason + #token + #kind + #namespace + #route
  return struct.pack(CELLS, offset, #state, state, #reason, reason, #token, token, #kind, kind,
    #namespace, namespace, #route, route, row.rev or 1, row.epoch or 0, row.lease_until_ms or -1,
    row.due_ms or -1, row.attempt or -1, row.priority or 0, row.created_ms or 0,
    row.next_attempt or 0, row.attempt_left_ms or -1, row.deadline_ms or -1, row.started_ms or -1,
    row.purge_ms or -1, MAP, row.count)
end

-- A front without its route: what is before it and what is behind it; nothing if it has another one.
-- Between them fits every route that is as long.
local function around_route(front, route)
  local last = #front - BEHIND_ROUTE_BYTES
  local first = last - #route
  local high, low = string.byte(front, first - 1, first)
  if not low or high * 256 + low ~= #route or part_of(front, first + 1, last) ~= route then
    return nil
  end
  return part_of(front, 1, first), part_of(front, last + 1)
end

-- All columns of a record.
local function columns_of(text)
  local _, last, flow = front_of(text)
  local is_read, columns = pcall(cmsgpack.unpack, part_of(text, last - 2))
  columns = is_read and type(columns) == 'table' and columns or {}
  columns.flow = flow
  return columns
end

-- Columns once each, and lines.
local function unrolled(text, last, count)
  local cells = cmsgpack.unpack(struct.pack('>BH', ARRAY, count * 2) .. part_of(text, last + 1))
  local columns, lines = {}, {}
  for place = 1, count * 2, 2 do
    if cells[place] == 'log' then
      lines[#lines + 1] = cells[place + 1]
    else
      columns[cells[place]] = cells[place + 1]
    end
  end
  return columns, lines
end

-- The same record without what was written over; its lines go to a list.
local function shortened(text, history)
  local front, last, flow = front_of(text)
  local row = read_front(front)
  local is_read, columns, lines = pcall(unrolled, text, last, row.count)
  if not is_read then
    return text
  end
  local parts = {''}
  for name, value in pairs(columns) do
    parts[#parts + 1] = pack(name, value)
  end
  if #lines > 0 then
    call('RPUSH', history, unpack(lines))
    call('LTRIM', history, -LOG_LINES_MAX, -1)
  end
  row.count = #parts - 1
  parts[1] = string.char(#flow) .. flow .. write_front(row)
  return table.concat(parts)
end

-- Read these records at once.
local function read_all(keys)
  if #keys <= CELLS_MAX then
    return #keys > 0 and call('MGET', unpack(keys)) or {}
  end
  local texts = {}
  for first = 1, #keys, CELLS_MAX do
    local last = math.min(first + CELLS_MAX - 1, #keys)
    for place, text in ipairs(call('MGET', unpack(keys, first, last))) do
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
