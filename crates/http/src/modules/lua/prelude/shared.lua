-- `ngx.shared`: a dictionary is a table with its number.

local native = ...
local setmetatable, type, select, ipairs, tonumber, tostring =
    setmetatable, type, select, ipairs, tonumber, tostring
local raise, counted = native.raise, native.counted
local a_string, a_number, a_kind = native.a_string, native.a_number, native.a_kind
local answer, given, answered_text = native.answer, native.given, native.answered_text
local NIL, TRUE, REFUSED, STALE = native.NIL, native.TRUE, native.REFUSED, native.STALE

local dicts = native.dicts

local methods = {}

-- Callers may pass all results on, so each function returns as many values as in lua-nginx-module,
-- with no extra nil.

-- The key of a dictionary's number. Scripts cannot make this key.
local NUMBER = {}

local function number_of(dict)
    return type(dict) == "table" and dict[NUMBER] or raise('bad "zone" argument')
end

-- A key: a text, or a value that has one.
local function key_of(key)
    if type(key) == "string" or key == nil then return key end
    return (tostring(key))
end

-- A time in seconds. One too long for milliseconds, or NaN, never expires.
local function seconds(value)
    return value < 2 ^ 43 and value or 0
end

-- Flags that are no number are an error only if there are a key and a value.
local function flags_of(flags, key, value)
    if not flags then return 0 end
    if flags == true then return 1 end
    local kind = type(value)
    local is_stored = kind == "nil" or kind == "boolean" or kind == "number" or kind == "string"
    if type(flags) ~= "number" and (key == nil or not is_stored) then return 0 end
    flags = a_kind(5, "number", flags) % 2 ^ 32
    -- The remainder of an infinite number is NaN.
    return flags == flags and flags or 0
end

-- Errors about the dictionary's content. Others are about the arguments.
local of_the_dictionary = {
    ["exists"] = true, ["not found"] = true, ["no memory"] = true,
    ["attempt to add or replace nil values"] = true,
}

-- The types of values and their numbers for `native`. Numbers and booleans are passed as numbers.
local kinds = { ["nil"] = 0, boolean = 1, number = 2, string = 3 }

for _, name in ipairs { "set", "safe_set", "add", "safe_add", "replace" } do
    local store = native["dict_" .. name]
    methods[name] = function(self, key, value, ttl, flags)
        local at = number_of(self)
        if ttl then
            if a_kind(4, "number", ttl) < 0 then raise('bad "exptime" argument') end
            ttl = seconds(ttl)
        end
        flags = flags_of(flags, key, value)
        key = key_of(key)
        if key == nil then return nil, "nil key" end
        local kind, done = type(value), nil
        if kind == "string" then
            done = store(key, #key, value, #value, at, ttl or 0, flags, 3, 0)
        else
            local number = kind == "number" and value or value == true and 1 or 0
            done = store(key, #key, nil, 0, at, ttl or 0, flags, kinds[kind] or 4, number)
        end
        if done == TRUE then return true, nil, answer.number ~= 0 end
        local err = answered_text()
        if of_the_dictionary[err] then return false, err, false end
        return nil, err
    end
end

local set = methods.set
function methods:delete(key) return set(self, key, nil) end

local dict_get, dict_incr = native.dict_get, native.dict_incr

function methods:get(key)
    local at = number_of(self)
    key = key_of(key)
    if key == nil then return nil, "nil key" end
    local kind = dict_get(key, #key, nil, 0, at, 0, 0, 0, 0)
    if kind == NIL then return nil end
    if kind == REFUSED then return nil, answered_text() end
    local flags = answer.other
    if flags == 0 then return given(kind) end
    return given(kind), flags
end

local dict_get_stale = native.dict_get_stale

function methods:get_stale(key)
    local at = number_of(self)
    key = key_of(key)
    if key == nil then return nil, "nil key" end
    local kind = dict_get_stale(key, #key, nil, 0, at, 0, 0, 0, 0)
    if kind == NIL then return nil end
    if kind == REFUSED then return nil, answered_text() end
    local flags = answer.other
    local stale = flags >= 2 ^ 32
    if stale then flags = flags - STALE end
    if flags == 0 then return given(kind), nil, stale end
    return given(kind), flags, stale
end

local dict_ttl, dict_expire = native.dict_ttl, native.dict_expire

function methods:ttl(key)
    local at = number_of(self)
    key = key_of(key)
    if key == nil then return nil, "nil key" end
    if dict_ttl(key, #key, nil, 0, at, 0, 0, 0, 0) == REFUSED then return nil, answered_text() end
    return answer.number
end

function methods:flush_all() return native.dict_flush_all(number_of(self)) end
function methods:capacity() return native.dict_capacity(number_of(self)) end
function methods:free_space() return native.dict_free_space(number_of(self)) end

function methods:expire(key, ttl)
    local at = number_of(self)
    if not ttl then raise('bad "exptime" argument') end
    if key == nil then return nil, "nil key" end
    if key == "" then return nil, "empty key" end
    key, ttl = key_of(key), seconds(a_number(3, ttl))
    if dict_expire(key, #key, nil, 0, at, ttl, 0, 0, 0) == REFUSED then return nil, answered_text() end
    return true
end

-- A number, or a text that can be converted to one.
local function number_from(name, value)
    return tonumber(value) or raise(("bad %s arg: number expected, got %s"):format(name, type(value)))
end

function methods:incr(key, by, init, ttl)
    local at = number_of(self)
    key = key_of(key)
    if key == nil then return nil, "nil key" end
    if key == "" then return nil, "empty key" end
    by = tonumber(by) or raise("cannot convert 'nil' to 'double'")
    if init then init = number_from("init", init) end
    if ttl ~= nil then
        ttl = number_from("init_ttl", ttl)
        if ttl < 0 then raise('bad "init_ttl" argument') end
        if not init then raise('must provide "init" when providing "init_ttl"') end
        ttl = seconds(ttl)
    end
    if dict_incr(key, #key, nil, 0, at, by, init and 1 or 0, init or 0, ttl or 0) == REFUSED then
        return nil, answered_text()
    end
    if not init then return answer.number end
    return answer.number, nil, answer.other ~= 0
end

-- The functions below count their arguments.

for _, name in ipairs { "lpush", "rpush" } do
    local push = native["dict_" .. name]
    methods[name] = function(...)
        counted(select("#", ...), 3, 3, "expecting 3 arguments, but only seen %d")
        local self, key, value = ...
        local at = number_of(self)
        if key == nil then return nil, "nil key" end
        key = a_string(2, key)
        local kind, done = type(value), nil
        if kind == "string" then
            done = push(key, #key, value, #value, at, 3, 0, 0, 0)
        elseif kind == "number" then
            done = push(key, #key, nil, 0, at, 2, value, 0, 0)
        else
            done = push(key, #key, nil, 0, at, 4, 0, 0, 0)
        end
        if done == REFUSED then return nil, answered_text() end
        return answer.number
    end
end

for _, name in ipairs { "lpop", "rpop", "llen" } do
    local ask = native["dict_" .. name]
    methods[name] = function(...)
        counted(select("#", ...), 2, 2, "expecting 2 arguments, but only seen %d")
        local self, key = ...
        local at = number_of(self)
        if key == nil then return nil, "nil key" end
        key = a_string(2, key)
        local kind = ask(key, #key, nil, 0, at, 0, 0, 0, 0)
        if kind == REFUSED then return nil, answered_text() end
        return (given(kind))
    end
end

local function most_of(n, self, most)
    counted(n, 1, 2, "expecting 1 or 2 argument(s), but saw %d")
    a_kind(1, "table", self)
    if n == 2 then most = a_number(2, most) end
    return most and (most > 0 and most < 2 ^ 31 and most - most % 1 or 0)
end

function methods.flush_expired(...)
    local most = most_of(select("#", ...), ...)
    return native.dict_flush_expired(number_of((...)), most)
end

-- Returns a table for an empty dictionary, too.
function methods.get_keys(...)
    local most = most_of(select("#", ...), ...)
    return native.dict_keys(number_of((...)), most) or {}
end

-- Scripts add methods through `__index`, so the metatable is its own index, as in OpenResty.
methods.__index = methods
local class = methods

ngx.shared = {}
for i, name in ipairs(dicts) do
    ngx.shared[name] = setmetatable({ [NUMBER] = i - 1 }, class)
end
