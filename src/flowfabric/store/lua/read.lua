-- Reads of one partition. Each sees one moment.

local SCAN_MAX = 1000
local PAGE = 100

local function read_attempts(base, uuid, row)
  local keys, attempts = {}, {}
  for number = 0, math.max(row.attempt or -1, row.next_attempt or 0) do
    keys[number + 1] = base .. ':attempt:' .. uuid .. ':' .. number
  end
  for place, text in ipairs(read_all(keys)) do
    if text then
      attempts[#attempts + 1] = {place - 1, text}
    end
  end
  return attempts
end

-- Heads by id, with what is wanted of their payloads, tags and attempts (arguments 4 to 6).
register('load', function(keys, args)
  local base = visit(keys[1])
  local rows = {}
  for position = 7, #args do
    local uuid = args[position]
    local head = call('GET', base .. ':x:' .. uuid)
    local row = {head, false, {}, {}}
    if head then
      row[2] = args[4] == '1' and call('GET', base .. ':payload:' .. uuid)
      row[3] = args[5] == '1' and call('HGETALL', base .. ':tags:' .. uuid) or {}
      row[4] = args[6] == '1' and read_attempts(base, uuid, read_row(head)) or {}
    end
    rows[#rows + 1] = row
  end
  return rows
end, READ_ONLY)

-- Rows whose timer has passed (argument 4, at most argument 5 of them), and when the next one will.
register('due', function(keys, args)
  local scope = open(keys[1], args)
  local key = scope.base .. ':due'
  local passed = call('ZRANGEBYSCORE', key, '-inf', args[4], 'WITHSCORES', 'LIMIT', 0, args[5])
  local later = call('ZRANGEBYSCORE', key, '(' .. args[4], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local ids, rows = {}, {}
  for position = 1, #passed, 2 do
    ids[#ids + 1] = passed[position]
  end
  for place, text in ipairs(read_texts(scope.base, ids)) do
    rows[place] = {ids[place], as_score(passed[place * 2]), text}
  end
  local first = as_score(first_score(key))
  return {whole(tonumber(scope.version) - 1), first, as_score(later[2] or ''), rows}
end, READ_ONLY)

-- How the ready queues of a namespace (argument 4) begin, argument 5 rows of each route.
register('peek', function(keys, args)
  local scope = open(keys[1], args)
  local keys, queues, beginning = {}, {}, scope.base .. ':ready:' .. queue_name(args[4], '')
  for position = 6, #args do
    keys[#keys + 1], queues[#queues + 1] = beginning .. args[position], {}
  end
  for _, place in ipairs(present(keys)) do
    queues[place] = call('ZRANGE', keys[place], 0, tonumber(args[5]) - 1, 'WITHSCORES')
  end
  local flows = as_score(first_score(scope.base .. ':flows'))
  local due = as_score(first_score(scope.base .. ':due'))
  return {whole(tonumber(scope.version) - 1), due, flows, queues}
end, READ_ONLY)

-- What a claim with this token (argument 4) holds.
register('held', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ids, rows = call('ZRANGEBYSCORE', scope.base .. ':ids', OPEN, OPEN), {}
  for place, text in ipairs(read_texts(scope.base, ids)) do
    local row = text and read_row(text)
    if row and row.lease_token == args[4] and row.state == 'active'
      and (row.lease_until_ms or 0) > scope.at_ms then
      rows[#rows + 1] = {partition_of(scope), ids[place], text}
    end
  end
  return {'ok', scope.at_ms, rows, {}}
end, READ_ONLY)

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

-- Arguments 6 to 8: namespace, lane and kind, each nothing if any will do.
local function fits(base, uuid, head, args, wanted)
  local has_all = (args[6] == '' or args[6] == head.namespace)
    and (args[7] == '' or args[7] == head.lane) and (args[8] == '' or args[8] == head.kind)
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

-- Heads that fit, by id, after argument 4, at most argument 5 of them; 9 is how many states follow,
-- of which it must be in one, then tags. Looks at some ids at a time and says how far it
-- came; an empty answer to that means that there are no more.
register('find', function(keys, args)
  local base = visit(keys[1])
  local limit, first_tag, classes = tonumber(args[5]), 10 + tonumber(args[9]), {}
  local wanted = {states = {}, first_tag = first_tag, hidden = {}, any_state = first_tag == 10}
  for position = 10, first_tag - 1 do
    wanted.states[args[position]] = true
    classes[CLASSES[args[position]] or OPEN] = true
  end
  if wanted.any_state then
    classes = {[OPEN] = true, true, true, true, true, true}
  end
  local ids, is_whole = some_ids(base, classes, args[4])
  local rows, last = {}, ''
  for first = 1, math.min(#ids, SCAN_MAX), PAGE do
    local some = {slice(ids, first, math.min(PAGE, #ids - first + 1))}
    for place, text in ipairs(read_texts(base, some)) do
      if #rows == limit then
        return {last, rows}
      end
      last = some[place]
      -- An entry without a record is told of: nobody knows what it would fit.
      if not text or fits(base, last, columns_of(text), args, wanted) then
        rows[#rows + 1] = {last, text}
      end
    end
  end
  return {is_whole and '' or last, rows}
end, READ_ONLY)
