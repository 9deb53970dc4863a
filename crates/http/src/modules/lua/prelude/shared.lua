-- `ngx.shared`: dictionaries are tables that hold their number.

local native = ...
local setmetatable = setmetatable

local methods = {}

for _, name in ipairs {
    "get", "get_stale", "set", "safe_set", "add", "safe_add", "replace", "delete", "incr",
    "lpush", "rpush", "lpop", "rpop", "llen", "ttl", "expire", "flush_all", "flush_expired",
    "capacity", "free_space",
} do
    local f = native["dict_" .. name]
    methods[name] = function(self, ...) return f(self[1], ...) end
end

-- An empty list of keys is a table, too.
function methods:get_keys(most) return native.dict_keys(self[1], most) or {} end

local class = { __index = methods }

ngx.shared = {}
for i, name in ipairs(native.dicts) do
    ngx.shared[name] = setmetatable({ i - 1 }, class)
end
