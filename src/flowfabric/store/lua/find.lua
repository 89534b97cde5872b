-- Finding executions in one partition: some ids at a time, and how far it came.

local SCAN_MAX = 1000

-- Ids of one class, by id, after one of them. Equal scores are in the order of their members, but
-- only a search finds where a member would be that may have gone.
local function ids_after(key, class, after)
  local first = call('ZCOUNT', key, '-inf', '(' .. class)
  local past = first + call('ZCOUNT', key, class, class)
  local low, high = first, past
  while after ~= '' and low < high do
    local middle = math.floor((low + high) / 2)
    if call('ZRANGE', key, middle, middle)[1] <= after then
      low = middle + 1
    else
      high = middle
    end
  end
  if low >= past then
    return {}
  end
  return call('ZRANGE', key, low, math.min(low + SCAN_MAX, past) - 1)
end

-- Whether an execution belongs to a flow that is still being submitted.
local function is_hidden(base, head, hidden)
  local flow = head.flow
  if flow and hidden[flow] == nil then
    hidden[flow] = call('HGET', base .. ':flow:' .. flow, 'is_open') == '0'
  end
  return flow and hidden[flow]
end

-- Arguments 6 to 8: namespace, lane and kind; 10: made then or later; each nothing if any will do.
local function fits(base, uuid, head, args, wanted)
  local has_all = (args[6] == '' or args[6] == head.namespace)
    and (args[7] == '' or args[7] == head.lane) and (args[8] == '' or args[8] == head.kind)
    and (wanted.since_ms == nil or (head.created_ms or 0) >= wanted.since_ms)
    and (wanted.any_state or wanted.states[head.state])
  if not has_all or is_hidden(base, head, wanted.hidden) then
    return false
  end
  for position = wanted.first_tag, #args, 2 do
    local value = call('HGET', base .. ':tags:' .. uuid, args[position])
    if value ~= args[position + 1] then
      return false
    end
  end
  return true
end

-- Ids of these classes, by id, after one of them, and whether these are all.
local function some_ids(base, classes, after)
  local ids, is_whole = {}, true
  for class in pairs(classes) do
    local some = ids_after(base .. ':ids', class, after)
    is_whole = is_whole and #some < SCAN_MAX
    for _, uuid in ipairs(some) do
      ids[#ids + 1] = uuid
    end
  end
  table.sort(ids)
  return ids, is_whole and #ids <= SCAN_MAX
end

-- The same of a flow's members.
local function some_members(base, flow, after)
  local low = after == '' and '-' or '(' .. after
  local ids = call('ZRANGEBYLEX', base .. ':members:' .. flow, low, '+', 'LIMIT', 0, SCAN_MAX)
  return ids, #ids < SCAN_MAX
end

-- What is asked for: argument 11 is how many states follow, of which it must be in one, then tags.
local function read_wanted(args)
  local first_tag, classes = 12 + tonumber(args[11]), {}
  local wanted = {
    states = {}, first_tag = first_tag, hidden = {}, any_state = first_tag == 12,
    since_ms = tonumber(args[10]),
  }
  for position = 12, first_tag - 1 do
    wanted.states[args[position]] = true
    classes[CLASSES[args[position]] or OPEN] = true
  end
  if wanted.any_state then
    classes = {[OPEN] = true, true, true, true, true, true}
  end
  return wanted, classes
end

-- Tell of those that fit, by id after argument 4, until `tell` says that it is enough. Answers how
-- far it came; nothing means that there are no more.
local function walk(base, args, tell)
  local wanted, classes = read_wanted(args)
  local ids, is_whole
  if args[9] == '' then
    ids, is_whole = some_ids(base, classes, args[4])
  else
    ids, is_whole = some_members(base, args[9], args[4])
  end
  local last = ''
  for first = 1, math.min(#ids, SCAN_MAX), PAGE do
    local some = {slice(ids, first, math.min(PAGE, #ids - first + 1))}
    for place, text in ipairs(read_texts(base, some)) do
      local uuid = some[place]
      -- An entry without a record is told of: nobody knows what it would fit.
      if (not text or fits(base, uuid, columns_of(text), args, wanted)) and not tell(uuid, text) then
        return last
      end
      last = uuid
    end
  end
  return is_whole and '' or last
end

-- Heads that fit, at most argument 5 of them.
register('find', function(keys, args)
  local limit, rows = tonumber(args[5]), {}
  local last = walk(visit(keys[1]), args, function(uuid, text)
    if #rows == limit then
      return false
    end
    rows[#rows + 1] = {uuid, text}
    return true
  end)
  return {last, rows}
end, READ_ONLY)

-- How many heads fit.
register('count', function(keys, args)
  local count = 0
  local last = walk(visit(keys[1]), args, function()
    count = count + 1
    return true
  end)
  return {last, count}
end, READ_ONLY)

-- What is ready in a namespace (argument 5), by route: how many and the oldest, of the next ids
-- after argument 4 that have not ended.
register('queues', function(keys, args)
  local base, found, rows = visit(keys[1]), {}, {}
  local ids, is_whole = some_ids(base, {[OPEN] = true}, args[4])
  for _, text in ipairs(read_texts(base, ids)) do
    local row = text and read_row(text)
    if row and READY[row.state] and row.namespace == args[5] then
      local queue = found[row.route] or {0, row.created_ms}
      found[row.route] = {queue[1] + 1, math.min(queue[2], row.created_ms)}
    end
  end
  for route, queue in pairs(found) do
    rows[#rows + 1] = {route, queue[1], whole(queue[2])}
  end
  return {is_whole and '' or ids[#ids], rows}
end, READ_ONLY)
