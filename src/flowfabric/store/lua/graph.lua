-- Who works on which flow, and parts of a graph in one moment.

local UUID_BYTES = 36
-- Names and texts of lines.
local function read_lines(base, flow, names)
  local lines = {}
  for first = 1, #names, CELLS_MAX do
    local last = math.min(first + CELLS_MAX - 1, #names)
    local texts = redis.call('HMGET', base .. ':line:' .. flow, unpack(names, first, last))
    for place = first, last do
      lines[#lines + 1] = {names[place], texts[place - first + 1] or ''}
    end
  end
  return lines
end

-- The oldest lines whose time has come.
local function due_lines(base, flow, now_ms, limit)
  local key, later = base .. ':lines:' .. flow, base .. ':later:' .. flow
  if redis.call('ZCARD', later) == 0 then
    return read_lines(base, flow, redis.call('ZRANGE', key, 0, limit - 1))
  end
  local names, offset = {}, 0
  while #names < limit do
    local some = redis.call('ZRANGE', key, offset, offset + PAGE - 1)
    for _, name in ipairs(some) do
      local at = tonumber(redis.call('ZSCORE', later, name) or 0)
      if at <= now_ms and #names < limit then
        names[#names + 1] = name
      end
    end
    if #some < PAGE then
      break
    end
    offset = offset + PAGE
  end
  return read_lines(base, flow, names)
end

-- Flows with something to do: argument 4 is the last of the round before, 5 how many are wanted.
-- Answers ids in the order of the round, and when the first of all has its time.
register('flows', function(keys, args)
  local scope = open(keys[1], args)
  local key = scope.base .. ':flows'
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', args[1])
  table.sort(ids)
  local rest, chosen, limit = {}, {}, tonumber(args[5])
  for _, id in ipairs(ids) do
    local list = id > args[4] and chosen or rest
    if #list < limit then
      list[#list + 1] = id
    end
  end
  append(chosen, rest)
  return {whole(tonumber(scope.version) - 1), as_score(first_score(key)), chosen}
end, READ_ONLY)

-- Take those of the flows from argument 7 on that have something to do, until argument 5; answers
-- them with at most argument 6 lines each.
register('flow_take', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local base, now_ms, limit, rows = scope.base, tonumber(args[1]), tonumber(args[6]), {}
  for position = 7, #args do
    local id = args[position]
    local at = redis.call('ZSCORE', base .. ':flows', id)
    if at and tonumber(at) <= now_ms then
      local cells = redis.call('HGETALL', base .. ':flow:' .. id)
      rows[#rows + 1] = {id, cells, due_lines(base, id, now_ms, limit)}
    end
  end
  if #rows == 0 then
    return {'ok', scope.at_ms, rows, {}}
  end
  for _, row in ipairs(rows) do
    redis.call('HSET', base .. ':flow:' .. row[1], 'busy_until_ms', args[5])
    scope.flows[row[1]] = true
  end
  return {'ok', scope.at_ms, rows, close(scope, args[4])}
end)

local function read_ids(args, position)
  local list, past = read_list(args, position, 1)
  local ids = {}
  for place = list.first, list.past do
    ids[#ids + 1] = args[place]
  end
  return ids, past
end

-- A page of members: after which, how many, and in which states, if it matters.
local function member_page(base, flow, after, limit, states)
  local wanted, found = {}, {}
  for _, state in ipairs(states) do
    wanted[state] = true
  end
  local key, low = base .. ':members:' .. flow, after == '' and '-' or '(' .. after
  while #found < limit do
    local some = redis.call('ZRANGEBYLEX', key, low, '+', 'LIMIT', 0, PAGE)
    local texts = #states > 0 and read_texts(base, some)
    for place, uuid in ipairs(some) do
      if #found == limit then
        break
      end
      if not texts or (texts[place] and wanted[decode(texts[place]).state]) then
        found[#found + 1] = uuid
      end
    end
    if #some < PAGE then
      break
    end
    low = '(' .. some[#some]
  end
  return found
end

local function add(set, id)
  if not set[id] then
    set[id] = true
    set[#set + 1] = id
  end
end

local function add_all(set, ids)
  for _, id in ipairs(ids) do
    add(set, id)
  end
end

-- Pending edges of these upstreams, which are in order, as many as wanted.
local function read_leaving(base, view, upstreams, limit)
  for _, upstream in ipairs(upstreams) do
    if #view.edges >= limit then
      return
    end
    local names = redis.call('ZRANGE', base .. ':leaving:' .. upstream, 0, limit - #view.edges - 1)
    for _, name in ipairs(names) do
      local downstream = string.sub(name, 1, UUID_BYTES)
      local field = upstream .. ':' .. string.sub(name, UUID_BYTES + 2)
      local texts = redis.call('HMGET', base .. ':edges:' .. downstream,
        'edge:' .. field, 'end:' .. field)
      local cells = {'edge:' .. field, texts[1] or ''}
      append(cells, texts[2] and {'end:' .. field, texts[2]} or {})
      view.edges[#view.edges + 1] = {downstream, cells}
      add(view.groups, downstream)
      add(view.heads, downstream)
    end
  end
end

-- Every edge with one of these downstreams; their upstreams are looked at if it is wanted.
local function read_entering(base, view, downstreams, is_with_ends)
  for _, downstream in ipairs(downstreams) do
    local cells = redis.call('HGETALL', base .. ':edges:' .. downstream)
    if #cells > 0 then
      view.edges[#view.edges + 1] = {downstream, cells}
    end
    for place = 1, is_with_ends and #cells or 0, 2 do
      local upstream = string.match(cells[place], '^edge:(.*)')
      if upstream then
        add(view.heads, string.sub(upstream, 1, UUID_BYTES))
      end
    end
  end
end

local function read_each(base, kind, ids)
  local rows = {}
  for _, id in ipairs(ids) do
    local cells = redis.call('HGETALL', base .. kind .. id)
    if #cells > 0 then
      rows[#rows + 1] = {id, cells}
    end
  end
  return rows
end

local function read_heads(base, ids)
  local rows = {}
  for place, text in ipairs(read_texts(base, ids)) do
    if text then
      rows[#rows + 1] = {ids[place], text}
    end
  end
  return rows
end

-- Argument 4 is the flow, 5 to 8 are whether lines, the whole graph, ends and members are wanted, 9
-- is how many edges, then lists: heads, leaving, entering, groups, and for members where to begin,
-- how many, and a list of states.
register('graph', function(keys, args)
  local base, flow = open(keys[1], args).base, args[4]
  local row = redis.call('HGETALL', base .. ':flow:' .. flow)
  if #row == 0 then
    return {}
  end
  local heads, leaving, entering, groups, states, position
  heads, position = read_ids(args, 10)
  leaving, position = read_ids(args, position)
  entering, position = read_ids(args, position)
  groups, position = read_ids(args, position)
  local view, members, lines = {edges = {}, groups = {}, heads = {}}, {}, {}
  add_all(view.heads, heads)
  add_all(view.groups, groups)
  read_leaving(base, view, leaving, tonumber(args[9]))
  read_entering(base, view, entering, args[7] == '1')
  add_all(view.groups, entering)
  if args[8] == '1' then
    states = read_ids(args, position + 2)
    members = member_page(base, flow, args[position], tonumber(args[position + 1]), states)
    add_all(view.heads, members)
  end
  if args[6] == '1' then
    local everybody = redis.call('ZRANGE', base .. ':members:' .. flow, 0, -1)
    append(view.edges, read_each(base, ':edges:', everybody))
  end
  if args[5] == '1' then
    lines = read_lines(base, flow, redis.call('ZRANGE', base .. ':lines:' .. flow, 0, -1))
  end
  return {
    row, view.edges, read_each(base, ':groups:', view.groups), read_heads(base, view.heads),
    members, lines,
  }
end, READ_ONLY)
