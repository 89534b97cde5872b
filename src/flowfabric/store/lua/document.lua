-- Documents: small named records of any kind, in the partition that their kind and namespace give.
--
-- A document is a hash. Beside it are a set of the names of its kind and namespace, one for each
-- word, and one of the times of its kind; all follow from the hash. One set names all those sets.

local INDEXES = ':doc_indexes'
-- What a look has seen of an index.
local USED, EMPTY = 'used', 'empty'

-- A kind and a namespace within a key; the lengths keep ('a:b', 'c') apart from ('a', 'b:c').
local function shelf_of(kind, namespace)
  return #kind .. ':' .. kind .. ':' .. #namespace .. ':' .. namespace
end

local function key_of(base, shelf, name)
  return base .. ':doc:' .. shelf .. ':' .. name
end

-- An entry of the index of times, and what it is made of.
local function timer_of(namespace, name)
  return namespace .. '\0' .. name
end

local function read_timer(text)
  local namespace, name = string.match(text, '^(%Z*)%z(.*)$')
  return namespace or '', name or ''
end

local function words_of(text)
  local is_read, words = pcall(cjson.decode, text or '')
  return is_read and type(words) == 'table' and words or {}
end

-- The revision and the words of a document: 0 if it is not there, -1 if its revision is no number.
local function seen(put)
  local cells = call('HMGET', put.key, 'rev', 'words')
  if not cells[1] and call('EXISTS', put.key) == 0 then
    return '0', false
  end
  local rev = string.match(cells[1] or '', '^%d+$')
  return rev or '-1', cells[2]
end

-- Puts of nine cells each from a place on: kind, namespace, name, revision seen, revision to be, due
-- time, words, whether there is a body, body.
local function read_puts(base, args, first)
  local puts = {}
  for position = first, #args, 9 do
    local kind, namespace, name, rev, next_rev, due_ms, words, has_body, body =
      unpack(args, position, position + 8)
    local shelf = shelf_of(kind, namespace)
    puts[#puts + 1] = {
      kind = kind, shelf = shelf, name = name, rev = rev, next_rev = next_rev, due_ms = due_ms,
      words = words, body = has_body == '1' and body or nil, key = key_of(base, shelf, name),
      timer = timer_of(namespace, name),
    }
  end
  return puts
end

local function name_index(shelf)
  return ':docs:' .. shelf
end

local function word_index(shelf, word)
  return ':word:' .. shelf .. ':' .. word
end

local function due_index(kind)
  return ':doc_due:' .. kind
end

local function enter(base, index, score, name)
  if call('ZADD', base .. index, score, name) == 1 then
    call('ZADD', base .. INDEXES, 0, index)
  end
end

local function leave(base, index, name)
  if call('ZREM', base .. index, name) == 1 and call('EXISTS', base .. index) == 0 then
    call('ZREM', base .. INDEXES, index)
  end
end

local function write_words(scope, put, before)
  if before == put.words then
    return
  end
  for _, word in ipairs(words_of(before)) do
    leave(scope.base, word_index(put.shelf, word), put.name)
  end
  for _, word in ipairs(words_of(put.words)) do
    enter(scope.base, word_index(put.shelf, word), 0, put.name)
  end
end

local function write_put(scope, put, before)
  local base = scope.base
  write_words(scope, put, before)
  if put.body then
    call('HSET', put.key, 'rev', put.next_rev, 'due_ms', put.due_ms, 'words', put.words,
      'body', put.body)
    enter(base, name_index(put.shelf), 0, put.name)
  else
    call('UNLINK', put.key)
    leave(base, name_index(put.shelf), put.name)
  end
  if put.body and put.due_ms ~= '' then
    enter(base, due_index(put.kind), put.due_ms, put.timer)
  else
    leave(base, due_index(put.kind), put.timer)
  end
end

local function first_due(scope, kind)
  return as_score(first_score(scope.base .. due_index(kind)))
end

-- By kind what was due first before: what is due sooner by now is told. A hint that is too early is
-- put right by whoever looks.
local function note_sooner(scope, firsts, changed)
  for kind, before in pairs(firsts) do
    local after = first_due(scope, kind)
    if after ~= '' and (before == '' or tonumber(after) < tonumber(before)) then
      changed[#changed + 1] =
        {'{due}', partition_of(scope) .. ' ' .. kind, scope.version, after}
    end
  end
end

local function cells_of(key)
  return call('HMGET', key, 'rev', 'due_ms', 'words', 'body')
end

-- Write the puts whose revision is as it was seen (argument 4: where hints are told). Answers for
-- each nothing if it was written, else what is there.
register('document_put', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local puts, answers, good, firsts = read_puts(scope.base, args, 5), {}, {}, {}
  for place, put in ipairs(puts) do
    local rev, words = seen(put)
    firsts[put.kind] = firsts[put.kind] or first_due(scope, put.kind)
    good[place] = rev == put.rev and {words} or false
    answers[place] = rev ~= put.rev and {rev ~= '0' and cells_of(put.key) or false} or {}
  end
  for place, put in ipairs(puts) do
    if good[place] then
      write_put(scope, put, good[place][1])
    end
  end
  local changed = {}
  finish(scope, changed)
  note_sooner(scope, firsts, changed)
  write_records(scope.values)
  return {'ok', scope.at_ms, answers, pass_on(args[4], changed)}
end)

-- Some names after one of them, in their order as bytes.
local function names_after(index, after, limit)
  return call('ZRANGEBYLEX', index, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
end

-- Whether a document that an index of a word names has the word; one that cannot be read may have.
local function has_word(cells, word)
  local is_read, words = pcall(cjson.decode, cells[3] or '')
  if not is_read or type(words) ~= 'table' then
    return true
  end
  for _, each in ipairs(words) do
    if each == word then
      return true
    end
  end
  return false
end

-- Documents of a kind (argument 4) and namespace (5) with a word (6) after a name (7), so many (8).
register('document_list', function(keys, args)
  local base, shelf = visit(keys[1]), shelf_of(args[4], args[5])
  local word, after, limit = args[6], args[7], tonumber(args[8])
  local index = word == '' and name_index(shelf) or word_index(shelf, word)
  local found = {}
  while #found < limit do
    local names = names_after(base .. index, after, limit - #found)
    for _, name in ipairs(names) do
      local key = key_of(base, shelf, name)
      local cells = cells_of(key)
      if call('EXISTS', key) == 1 and (word == '' or has_word(cells, word)) then
        found[#found + 1] = {name, cells}
      end
      after = name
    end
    if #names == 0 then
      break
    end
  end
  return found
end, READ_ONLY)

-- Documents of a kind (argument 6) whose time has come (argument 4, at most argument 5 of them), and
-- when that of the next one does.
register('document_due', function(keys, args)
  local scope = open(keys[1], args)
  local key = scope.base .. due_index(args[6])
  local passed = call('ZRANGEBYSCORE', key, '-inf', args[4], 'WITHSCORES', 'LIMIT', 0, args[5])
  local later = call('ZRANGEBYSCORE', key, '(' .. args[4], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local rows = {}
  for position = 1, #passed, 2 do
    local namespace, name = read_timer(passed[position])
    local document = key_of(scope.base, shelf_of(args[6], namespace), name)
    if call('EXISTS', document) == 1 then
      rows[#rows + 1] = {namespace, name, as_score(passed[position + 1]), cells_of(document)}
    end
  end
  local first = as_score(first_score(key))
  return {whole(tonumber(scope.version) - 1), first, as_score(later[2] or ''), rows}
end, READ_ONLY)

-- When the first documents of these kinds (arguments 4 and on) are due.
register('document_peek', function(keys, args)
  local scope = open(keys[1], args)
  local firsts = {}
  for position = 4, #args do
    firsts[#firsts + 1] = first_due(scope, args[position])
  end
  return {whole(tonumber(scope.version) - 1), firsts}
end, READ_ONLY)

-- A text that begins with its length, and what follows it.
local function read_sized(text)
  local size, first = string.match(text, '^(%d+):()')
  local last = first and first + tonumber(size) - 1
  return first and string.sub(text, first, last) or '', first and string.sub(text, last + 2) or ''
end

-- What an index is of: the way to read its entries, the kind, the namespace unless an entry says
-- it, and the word.
local function read_index(index)
  local way, rest = string.match(index, '^:([a-z_]+):(.*)$')
  if way == 'doc_due' then
    return way, rest
  end
  local kind, namespace, word
  kind, rest = read_sized(rest or '')
  namespace, word = read_sized(rest)
  return way, kind, namespace, word
end

-- An index that a document belongs to is named with all others.
local function verify_entry(run, index, name, score)
  set_right(run, index, name, score)
  if score and not run.indexes[index] then
    set_right(run, INDEXES, index, '0')
  end
  if score then
    run.indexes[index] = USED
  end
end

-- Every place that follows from a document; what of it cannot be read stays where it is. Answers its
-- words: nothing if it is not there.
local function verify_document(run, kind, namespace, name)
  local base, shelf = run.scope.base, shelf_of(kind, namespace)
  local key, timer = key_of(base, shelf, name), timer_of(namespace, name)
  local is_there = call('EXISTS', key) == 1
  local cells = cells_of(key)
  if run.seen[key] then
    return is_there and cells or nil
  end
  run.seen[key] = true
  run.kinds[kind] = run.kinds[kind] or first_due(run.scope, kind)
  verify_entry(run, name_index(shelf), name, is_there and '0' or nil)
  for _, word in ipairs(words_of(cells[3])) do
    verify_entry(run, word_index(shelf, word), name, '0')
  end
  local due_ms = cells[2] or ''
  if due_ms == '' or string.match(due_ms, '^%d+$') then
    verify_entry(run, due_index(kind), timer, due_ms ~= '' and due_ms or nil)
  end
  return is_there and cells or nil
end

local function walk_entries(run, index, entries)
  local way, kind, namespace, word = read_index(index)
  for _, entry in ipairs(entries) do
    local name, is_right = entry, true
    if way == 'doc_due' then
      namespace, name = read_timer(entry)
      is_right = entry == timer_of(namespace, name)
    end
    local cells = verify_document(run, kind, namespace, name)
    if way == 'word' then
      is_right = cells and has_word(cells, word)
    end
    if not is_right then
      set_right(run, index, entry, nil)
    end
  end
end

-- Indexes that nothing is in, and that no document which was looked at belongs to.
local function count_empty(run)
  for _, seen in pairs(run.indexes) do
    run.repaired = run.repaired + (seen == EMPTY and 1 or 0)
  end
end

-- Entries of all indexes of documents from a place on: which index, and where in it. Answers where
-- to go on, nothing at the end. An index without entries is not there.
function documents.walk(run, after)
  local base = run.scope.base
  local number, first = string.match(after, '^(%d+)%.(%d+)$')
  number, first = tonumber(number) or 0, tonumber(first) or 0
  while run.left > 0 do
    local index = call('ZRANGE', base .. INDEXES, number, number)[1]
    if not index then
      return count_empty(run)
    end
    local limit = run.left
    local entries = call('ZRANGE', base .. index, first, first + limit - 1)
    run.indexes[index] = run.indexes[index] or #entries + first == 0 and EMPTY or USED
    walk_entries(run, index, entries)
    run.left = limit - math.max(#entries, 1)
    first = #entries == limit and first + limit or 0
    number = first == 0 and number + 1 or number
  end
  count_empty(run)
  return number .. '.' .. whole(first)
end

-- After what was set right is written: what has become of the indexes, and what is due sooner.
function documents.settle(run, changed)
  local base = run.scope.base
  for index in pairs(run.indexes) do
    if call('EXISTS', base .. index) == 0 then
      call('ZREM', base .. INDEXES, index)
    end
  end
  note_sooner(run.scope, run.kinds, changed)
end
