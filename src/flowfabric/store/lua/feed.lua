-- The feed of a partition: every write is one entry, which holds the lines it wrote.

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
