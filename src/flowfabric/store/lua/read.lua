-- Reads of one partition. Each sees one moment.

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
