-- The table functions that OpenResty's LuaJIT adds to LuaJIT, as modules.

local pairs, type, next = pairs, type, next

local function count(t)
    local n = 0
    for _ in pairs(t) do n = n + 1 end
    return n
end

local added = {
    nkeys = count,
    isempty = function(t) return next(t) == nil end,
    isarray = function(t)
        for key in pairs(t) do
            if type(key) ~= "number" or key <= 0 or key % 1 ~= 0 then return false end
        end
        return true
    end,
    clone = function(t)
        local copy = {}
        for key, value in pairs(t) do copy[key] = value end
        return copy
    end,
}

for name, f in pairs(added) do
    table[name] = f
    package.preload["table." .. name] = function() return f end
end
