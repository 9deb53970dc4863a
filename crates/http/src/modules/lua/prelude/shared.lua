-- `ngx.shared`: dictionaries are tables that hold their number.

local native = ...
local setmetatable = setmetatable

local methods = {}

for _, name in ipairs {
    "get_stale", "set", "safe_set", "add", "safe_add", "replace", "delete",
    "lpush", "rpush", "lpop", "rpop", "llen", "ttl", "expire", "flush_all", "flush_expired",
    "capacity", "free_space",
} do
    local f = native["dict_" .. name]
    methods[name] = function(self, ...) return f(self[1], ...) end
end

-- These two answer with as many values as there are.

local dict_get, dict_incr = native.dict_get, native.dict_incr

function methods:get(key)
    local value, flags = dict_get(self[1], key)
    if value == nil and flags == nil then return nil end
    return value, flags
end

function methods:incr(key, by, init, ttl)
    local sum, err, forcible = dict_incr(self[1], key, by, init, ttl)
    if not sum then return nil, err end
    return sum, err, forcible
end

-- An empty list of keys is a table, too.
function methods:get_keys(most) return native.dict_keys(self[1], most) or {} end

local class = { __index = methods }

ngx.shared = {}
for i, name in ipairs(native.dicts) do
    ngx.shared[name] = setmetatable({ i - 1 }, class)
end
