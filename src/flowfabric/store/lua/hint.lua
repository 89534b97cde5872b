-- Which ready queues hints name, where all keys are on one server: the best first, over many routes.
--
-- The hints of a route are a sorted set: partitions, by how its queue begins there. Of each route
-- some are read, more of those that were all used. What a claim needs of many routes is little, and
-- most of them may have nothing: it must not cost a look at each.

-- The hints of these routes, none of them read. By the place of a route among them: its key, what
-- has been read of it, where that is used up, and where to read on, nothing at the end. `open` are
-- those that may have more.
local function hints_of(names, beginning)
  local hints = {names = names, keys = {}, open = {}, cells = {}, at = {}, offset = {}}
  for place, name in ipairs(names) do
    hints.keys[place] = beginning .. name .. '}'
  end
  hints.open = present(hints.keys)
  return hints
end

-- Read so many more of each route of which all were used. Answers how good a head may be at most
-- that was not read, nothing if there is none, and how many were.
local function read_hints(hints, count)
  local bound, examined, all_cells, all_at, offsets = nil, 0, hints.cells, hints.at, hints.offset
  for _, place in ipairs(hints.open) do
    local cells, offset = all_cells[place], offsets[place] or 0
    if not cells or not cells[all_at[place]] then
      cells = call('ZRANGE', hints.keys[place], offset, offset + count - 1, 'WITHSCORES')
      offset = #cells == 2 * count and offset + count
      all_cells[place], all_at[place], offsets[place] = cells, 1, offset
      examined = examined + #cells / 2
    end
    if offset then
      local last = cells[#cells] + 0
      bound = (not bound or last < bound) and last or bound
    end
  end
  return bound, examined
end

-- A queue that begins so: queues of one partition that begin alike are together.
local function add_named(named, score, number, name)
  local alike = named[score]
  if not alike then
    alike = {}
    named[score], named.scores[#named.scores + 1] = alike, score
  end
  local names = alike[number]
  if not names then
    names = {number = number, score = score}
    alike[number], alike[#alike + 1] = names, rank_of(number)
  end
  names[#names + 1] = name
end

-- Those that hints name, up to this head, and from then on used.
local function use_hints(hints, bound)
  local named, open = {scores = {}}, {}
  for _, place in ipairs(hints.open) do
    local cells, at = hints.cells[place], hints.at[place]
    while cells[at] do
      local score = cells[at + 1] + 0
      if bound and score > bound then
        break
      end
      add_named(named, score, cells[at], hints.names[place])
      at = at + 2
    end
    hints.at[place] = at
    if cells[at] or hints.offset[place] then
      open[#open + 1] = place
    end
  end
  hints.open = open
  return named
end

-- The names of queues by partition, in the order of their heads and of ids.
local function in_order(named)
  local ordered = {}
  table.sort(named.scores)
  for _, score in ipairs(named.scores) do
    local alike = named[score]
    table.sort(alike)
    for _, rank in ipairs(alike) do
      ordered[#ordered + 1] = alike[number_of_rank(rank)]
    end
  end
  return ordered
end
