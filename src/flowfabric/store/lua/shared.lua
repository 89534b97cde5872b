-- What belongs to no partition: how the store was set up, lanes, and hints.
--
-- The declared key names the scope; its records are made from it, as in a partition.

-- Set up the store at its first start; answers how it was set up. Arguments 4 and on: the fields.
register('setup', function(keys, args)
  open(keys[1], args)
  local meta = call('HGETALL', keys[1])
  if #meta > 0 then
    return meta
  end
  call('HSET', keys[1], slice(args, 4, #args - 3))
  return call('HGETALL', keys[1])
end)

-- Raise a number among the facts about the store (argument 1) to argument 2, if it is lower.
register('raise', function(keys, args)
  local known = tonumber(call('HGET', visit(keys[1]), args[1])) or 0
  if known < tonumber(args[2]) then
    call('HSET', keys[1], args[1], args[2])
  end
  return 'ok'
end)

-- Lanes come to be when something is submitted to them.
register('lane_ensure', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  for position = 4, #args do
    call('HSETNX', keys[1] .. ':all', args[position], 'active 1')
  end
  return {'ok', scope.at_ms}
end)

-- Set lanes, or none when one of them is not as it was seen: name, revision seen, state, each.
register('lane_change', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local lanes = keys[1] .. ':all'
  for position = 4, #args, 3 do
    local known = call('HGET', lanes, args[position])
    local rev = known and string.match(known, '(%d+)$') or '0'
    if rev ~= args[position + 1] then
      return {'ok', scope.at_ms, 0}
    end
  end
  for position = 4, #args, 3 do
    local rev = whole(tonumber(args[position + 1]) + 1)
    call('HSET', lanes, args[position], args[position + 2] .. ' ' .. rev)
  end
  return {'ok', scope.at_ms, 1}
end)

-- Whose turn duties are: name, owner, until when, and a report, each. Those that are free or the
-- asker's own are taken; an empty report keeps the last. Answers all of them.
register('shift_take', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local shifts = keys[1] .. ':all'
  for position = 4, #args, 4 do
    local name, owner, until_ms, report = unpack(args, position, position + 3)
    local known = call('HGET', shifts, name)
    local holder, busy_ms, last = string.match(known or '- 0 ', '^(%S*) (%d+) (.*)$')
    -- What cannot be read is nobody's.
    holder, busy_ms, last = holder or '-', busy_ms or '0', last or ''
    if holder == owner or tonumber(busy_ms) <= tonumber(scope.now) then
      report = report == '' and last or report
      call('HSET', shifts, name, owner .. ' ' .. until_ms .. ' ' .. report)
    end
  end
  return {'ok', scope.at_ms, call('HGETALL', shifts)}
end)

-- Keep hints: partition, version and score, each.
register('hint', function(keys, args)
  visit(keys[1])
  for position = 1, #args, 3 do
    tell(keys[1], args[position], args[position + 1], args[position + 2])
  end
  return 'ok'
end)

-- Which partitions have something, those with the best heads first; argument 4 says how many.
register('hinted', function(keys, args)
  local scope = open(keys[1] .. ':scope', args)
  if scope.refusal then
    return scope.refusal
  end
  local last = tonumber(args[4]) - 1
  return {'ok', scope.at_ms, call('ZRANGE', keys[1], 0, last, 'WITHSCORES')}
end, READ_ONLY)
