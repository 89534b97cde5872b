-- Reads of one partition. Each sees one moment.

local SCAN_MAX = 1000

local function flat(key)
  return redis.call('HGETALL', key)
end

local function read_attempts(base, uuid, cells)
  local attempts = {}
  for number = 0, math.max(tonumber(cells[1]) or -1, tonumber(cells[2]) or 0) do
    local attempt = flat(base .. ':attempt:' .. uuid .. ':' .. number)
    if #attempt > 0 then
      attempts[#attempts + 1] = {number, attempt}
    end
  end
  return attempts
end

-- Heads by id, with what is wanted of their payloads, tags and attempts (arguments 4 to 6).
register('load', function(keys, args)
  local base = open(keys[1], args).base
  local rows = {}
  for position = 7, #args do
    local uuid = args[position]
    local key = base .. ':x:' .. uuid
    local head = flat(key)
    local row = {head, '', {}, {}}
    if #head > 0 then
      if args[4] == '1' then
        row[2] = redis.call('HGET', key, 'payload') or redis.call('GET', base .. ':payload:' .. uuid) or ''
      end
      row[3] = args[5] == '1' and flat(base .. ':tags:' .. uuid) or {}
      if args[6] == '1' then
        local cells = redis.call('HMGET', key, 'attempt', 'next_attempt')
        row[4] = read_attempts(base, uuid, cells)
      end
    end
    rows[#rows + 1] = row
  end
  return rows
end, READ_ONLY)

-- How executions stand, with the result of the attempt that the head names.
register('endings', function(keys, args)
  local base = open(keys[1], args).base
  local rows = {}
  for position = 4, #args do
    local uuid = args[position]
    local row = redis.call('HMGET', base .. ':x:' .. uuid,
      'state', 'outcome_detail', 'outcome_category', 'attempt')
    local attempt = base .. ':attempt:' .. uuid .. ':' .. (row[4] or '-1')
    row[4] = row[1] and redis.call('HGET', attempt, 'result') or false
    rows[#rows + 1] = row
  end
  return rows
end, READ_ONLY)

-- Rows whose timer has passed (argument 4, at most argument 5 of them), and when the next one will.
register('due', function(keys, args)
  local scope = open(keys[1], args)
  local key = scope.base .. ':due'
  local passed = redis.call('ZRANGEBYSCORE', key, '-inf', args[4], 'WITHSCORES', 'LIMIT', 0, args[5])
  local later = redis.call('ZRANGEBYSCORE', key, '(' .. args[4], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local rows = {}
  for position = 1, #passed, 2 do
    local uuid = passed[position]
    rows[#rows + 1] = {uuid, as_score(passed[position + 1]), flat(scope.base .. ':x:' .. uuid)}
  end
  return {whole(tonumber(scope.version) - 1), scope.due, as_score(later[2] or ''), rows}
end, READ_ONLY)

-- How the ready queues of a namespace (argument 4) begin, argument 5 rows of each lane.
register('peek', function(keys, args)
  local scope = open(keys[1], args)
  local queues = {}
  for position = 6, #args do
    local key = scope.base .. ':ready:' .. queue_name(args[4], args[position])
    queues[#queues + 1] = redis.call('ZRANGE', key, 0, tonumber(args[5]) - 1, 'WITHSCORES')
  end
  local flows = as_score(first_score(scope.base .. ':flows'))
  return {whole(tonumber(scope.version) - 1), scope.due, flows, queues}
end, READ_ONLY)

-- What a claim with this token (argument 4) holds.
register('held', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ids = {scope.number}
  local open_ones = redis.call('ZRANGEBYSCORE', scope.base .. ':ids', OPEN, OPEN)
  for _, uuid in ipairs(open_ones) do
    local key = scope.base .. ':x:' .. uuid
    local cells = redis.call('HMGET', key, 'lease_token', 'state')
    if cells[1] == args[4] and cells[2] == 'active' then
      ids[#ids + 1] = uuid
    end
  end
  return {'ok', scope.at_ms, {ids}, {}}
end, READ_ONLY)

-- Ids of one class, by id, after one of them. Equal scores are in the order of their members, but
-- only a search finds where a member would be that may have gone.
local function ids_after(key, class, after)
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. class)
  local past = first + redis.call('ZCOUNT', key, class, class)
  local low, high = first, past
  while after ~= '' and low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', key, middle, middle)[1] <= after then
      low = middle + 1
    else
      high = middle
    end
  end
  if low >= past then
    return {}
  end
  return redis.call('ZRANGE', key, low, math.min(low + SCAN_MAX, past) - 1)
end

-- Arguments 6 to 8: namespace, lane and kind, each nothing if any will do.
local function fits(base, uuid, args, states, first_tag)
  local cells = redis.call('HMGET', base .. ':x:' .. uuid,
    'namespace', 'lane', 'kind', 'state', 'flow')
  if cells[5] and redis.call('HGET', base .. ':flow:' .. cells[5], 'is_open') == '0' then
    return false
  end
  for position = 1, 3 do
    local wanted = args[5 + position]
    if wanted ~= '' and wanted ~= cells[position] then
      return false
    end
  end
  if next(states) and not states[cells[4]] then
    return false
  end
  for position = first_tag, #args, 2 do
    local value = redis.call('HGET', base .. ':tags:' .. uuid, args[position])
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
  local base = open(keys[1], args).base
  local limit, first_tag = tonumber(args[5]), 10 + tonumber(args[9])
  local states, classes = {}, {}
  for position = 10, first_tag - 1 do
    states[args[position]] = true
    classes[CLASSES[args[position]] or OPEN] = true
  end
  if next(states) == nil then
    classes = {[OPEN] = true, true, true, true, true, true}
  end
  local ids, is_whole = some_ids(base, classes, args[4])
  local rows, last = {}, ''
  for position = 1, math.min(#ids, SCAN_MAX) do
    if #rows == limit then
      return {last, rows}
    end
    last = ids[position]
    if fits(base, last, args, states, first_tag) then
      rows[#rows + 1] = {last, flat(base .. ':x:' .. last)}
    end
  end
  return {is_whole and '' or last, rows}
end, READ_ONLY)
