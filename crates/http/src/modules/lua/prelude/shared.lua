-- `ngx.shared`: dictionaries are tables that hold their number.

local native = ...
local setmetatable = setmetatable

local methods = {}

for _, name in ipairs {
    "get_stale", "lpop", "rpop", "flush_all", "flush_expired", "capacity", "free_space",
} do
    local f = native["dict_" .. name]
    methods[name] = function(self, ...) return f(self[1], ...) end
end

-- A caller may pass all values on, so each function has as many as in lua-nginx-module, no nil more.

local function one(value, err)
    if err == nil then return value end
    return nil, err
end

for _, name in ipairs { "lpush", "rpush", "llen", "ttl", "expire" } do
    local f = native["dict_" .. name]
    methods[name] = function(self, ...) return one(f(self[1], ...)) end
end

-- What the dictionary says of a value that it could hold. The other refusals are about the arguments.
local of_the_dictionary = {
    ["exists"] = true, ["not found"] = true, ["no memory"] = true,
    ["attempt to store a nil value"] = true,
}

local function stored(done, err, forcible)
    if done or of_the_dictionary[err] then return done, err, forcible end
    return nil, err
end

for _, name in ipairs { "set", "safe_set", "add", "safe_add", "replace" } do
    local f = native["dict_" .. name]
    methods[name] = function(self, ...) return stored(f(self[1], ...)) end
end

function methods:delete(key) return self:set(key, nil) end

local dict_get, dict_incr = native.dict_get, native.dict_incr

function methods:get(key)
    local value, flags = dict_get(self[1], key)
    if flags == nil then return value end
    return value, flags
end

function methods:incr(key, by, init, ttl)
    local sum, err, forcible = dict_incr(self[1], key, by, init, ttl)
    if not sum then return nil, err end
    if init == nil then return sum end
    return sum, nil, forcible
end

-- An empty list of keys is a table, too.
function methods:get_keys(most) return native.dict_keys(self[1], most) or {} end

local class = { __index = methods }

ngx.shared = {}
for i, name in ipairs(native.dicts) do
    ngx.shared[name] = setmetatable({ i - 1 }, class)
end
