-- `ngx.location`.

local native = ...
local wait, METHODS = native.wait, native.METHODS
local type, tostring, pairs = type, tostring, pairs

local function asked(uri, options)
    local all = {}
    for name, value in pairs(options or {}) do all[name] = value end
    all.uri = tostring(uri)
    if type(all.args) == "table" then all.args = ngx.encode_args(all.args) end
    if type(all.body) == "number" then all.body = tostring(all.body) end
    if all.method then
        all.method = METHODS[all.method] or error("unsupported HTTP method: " .. tostring(all.method), 3)
    end
    return all
end

ngx.location = {}

function ngx.location.capture(uri, options)
    return wait(native.capture { asked(uri, options) })
end

function ngx.location.capture_multi(list)
    local all = {}
    for i, one in ipairs(list) do all[i] = asked(one[1], one[2]) end
    return wait(native.capture(all))
end
