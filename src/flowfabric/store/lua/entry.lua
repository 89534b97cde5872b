-- Entries of executions: what is kept beside them under a topic and a key, written once.
--
-- All that an execution has is in one sorted set of equal scores, which go by their members as
-- bytes: generation, topic, key, epoch and the writer's order as texts, then the body; a NUL, which
-- none of them holds, is behind each. So a range of members is a topic from a key on, nothing is
-- kept twice, and all of it goes with one key.

-- Generations are all equally long, so that they and what follows sort alike.
local GENERATION = '%010.0f'
local NUL = '\0'
local ENTRY_CELLS = 3

-- The generation that counts. It is no part of the front; most executions were never replayed, and
-- have no such column.
local function generation_of(text)
  if not string.find(text, 'generation', 1, true) then
    return 0
  end
  return tonumber(columns_of(text).generation) or 0
end

-- Whether a row is held by who shows this token, but for the time and the epoch.
local function holds_lease(row, token, reasons)
  return row.state == 'active' and row.lease_token == token
    and string.find(reasons, row.reason, 1, true) and row.lease_until_ms ~= nil
end

-- Where the entries of an execution are, and how those of its generation begin.
local function entries_of(base, uuid, generation)
  return base .. ':entry:' .. uuid, string.format(GENERATION, generation) .. NUL
end

-- A member that begins so, if there is one.
local function known_entry(key, beginning)
  return call('ZRANGEBYLEX', key, '[' .. beginning, '(' .. beginning .. '\255', 'LIMIT', 0, 1)[1]
end

-- Write those whose keys are new: topic and key, the writer's order, and the body, each. Answers
-- what is there under the other keys, with their places among those given.
local function put_entries(base, uuid, text, epoch, cells, first, count)
  local key, front = entries_of(base, uuid, generation_of(text))
  local is_empty, there, added = call('EXISTS', key) == 0, {}, {n = 0}
  for number = 0, count - 1 do
    local place = first + number * ENTRY_CELLS
    local beginning = front .. cells[place]
    local known = not is_empty and known_entry(key, beginning)
    if known then
      there[#there + 1] = {number, known}
    else
      put(added, '0',
        beginning .. text_of(epoch) .. NUL .. cells[place + 1] .. NUL .. cells[place + 2])
    end
  end
  write_portions('ZADD', key, added)
  return there
end

-- Arguments: 4 is a list: keys of partitions, and for each of these how many appends, and those: id,
-- epoch, token, reasons, how many entries, and those. Nothing is written for a lease that is not as
-- shown; such a one is answered with its record, the others with what was there.
register('append', function(_, args)
  local shared, cells, position = begin(args), cmsgpack.unpack(args[4]), 2
  local bases, items, keys = cells[1], {}, {}
  for _, base in ipairs(bases) do
    visit(base)
  end
  for place, record in ipairs(read_all(bases)) do
    local scope = opened(bases[place], record, shared)
    if scope.refusal then
      return scope.refusal
    end
    local count = cells[position]
    position = position + 1
    for _ = 1, count do
      items[#items + 1] = {scope = scope, first = position}
      keys[#keys + 1] = scope.base .. ':x:' .. cells[position]
      position = position + 5 + cells[position + 4] * ENTRY_CELLS
    end
  end
  local answers = {}
  for number, text in ipairs(read_all(keys)) do
    local item = items[number]
    local scope, uuid, epoch, token, reasons, count = item.scope, slice(cells, item.first, 5)
    local row = text and read_row(text)
    local is_good = row and row.epoch == epoch and holds_lease(row, token, reasons)
    if is_good and row.lease_until_ms > scope.at_ms then
      answers[number] = {
        1, put_entries(scope.base, uuid, text, epoch, cells, item.first + 5, count),
      }
    else
      answers[number] = {0, text}
    end
  end
  return {'ok', shared.at_ms, answers, {}}
end)

-- Arguments 4 and on: id, topic, after which key, how many at most, and the generation, nothing for
-- the one that counts, each.
register('entries', function(keys, args)
  local base, answers = visit(keys[1]), {}
  for position = 4, #args, 5 do
    local uuid, topic, after, limit, generation = slice(args, position, 5)
    local text = call('GET', base .. ':x:' .. uuid)
    local found = {}
    if text then
      local number = generation == '' and generation_of(text) or tonumber(generation)
      local key, front = entries_of(base, uuid, number)
      front = front .. topic .. NUL
      -- Behind all that begins with the key, if there is one: its end sorts after a NUL.
      local from = after == '' and '[' .. front or '(' .. front .. after .. '\1'
      found = call('ZRANGEBYLEX', key, from, '(' .. front .. '\255', 'LIMIT', 0, limit)
    end
    answers[#answers + 1] = found
  end
  return answers
end, READ_ONLY)
