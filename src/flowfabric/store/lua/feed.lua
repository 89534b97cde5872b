-- The feeds of partitions: every write is one entry, which holds the lines it wrote.

local WRITES_AT_ONCE = 8

-- Up to `count` lines of one feed after a line of a write, of which those in wanted states are
-- told. Answers the partition, whether there may be more, the last line looked at, and lines.
local function read_feed(prefix, partition, after, count, wanted)
  local key = prefix .. '{fp:' .. partition .. '}:feed'
  local lines, seen, last, from = {}, 0, after, after[1]
  repeat
    local writes = redis.call('XRANGE', key, from, '+', 'COUNT', WRITES_AT_ONCE)
    for _, write in ipairs(writes) do
      local version, cells = string.match(write[1], '^%d+'), write[2]
      local first = version == after[1] and after[2] + 1 or 1
      for number = first, math.min(#cells / 2, first + count - seen - 1) do
        local line = cells[number * 2]
        seen, last = seen + 1, {version, number}
        if not wanted or wanted[string.match(line, '^[^\t]*')] then
          lines[#lines + 1] = {version, number, line}
        end
      end
      from = '(' .. write[1]
    end
  until seen == count or #writes < WRITES_AT_ONCE
  return {tonumber(partition), seen == count and 1 or 0, last, lines}, seen
end

-- Argument 1 is where the partitions are, 2 how many lines of each are looked at, 3 how many states
-- follow to choose by, then partition, write and line, each.
register('feed', function(keys, args)
  redis.call('EXISTS', keys[1] .. ':canary')
  local count, states, wanted, feeds = tonumber(args[2]), tonumber(args[3]), nil, {}
  for position = 4, 3 + states do
    wanted = wanted or {}
    wanted[args[position]] = true
  end
  for position = 4 + states, #args, 3 do
    local after = {args[position + 1], tonumber(args[position + 2])}
    local feed, seen = read_feed(args[1], args[position], after, count, wanted)
    if seen > 0 then
      feeds[#feeds + 1] = feed
    end
  end
  return feeds
end, READ_ONLY)

-- The last line of a feed.
register('newest', function(keys, args)
  redis.call('EXISTS', keys[1] .. ':canary')
  local write = redis.call('XREVRANGE', keys[1] .. ':feed', '+', '-', 'COUNT', 1)[1]
  if not write then
    return {}
  end
  return {string.match(write[1], '^%d+'), #write[2] / 2, write[2][#write[2]]}
end, READ_ONLY)

-- Forget the writes of a feed before argument 1, and remember the last that was forgotten.
register('trim', function(keys, args)
  redis.call('EXISTS', keys[1] .. ':canary')
  local feed = keys[1] .. ':feed'
  local last = redis.call('XREVRANGE', feed, '(' .. args[1], '-', 'COUNT', 1)[1]
  if last then
    redis.call('XTRIM', feed, 'MINID', args[1])
    redis.call('HSET', keys[1], 'trimmed', string.match(last[1], '^%d+'))
  end
  return last and 1 or 0
end)
