-- `ngx.location`.

local native = ...
local wait, METHODS = native.wait, native.METHODS
local raise, counted, a_kind, a_string = native.raise, native.counted, native.a_kind, native.a_string
local type, tostring, pairs, ipairs, select = type, tostring, pairs, ipairs, select

-- The description of subrequest i.
local function asked(i, uri, options)
    local kind = type(options)
    if kind ~= "table" and kind ~= "nil" then
        raise(("expecting table as the 2nd argument for subrequest %d, but got %s"):format(i, kind))
    end
    local all = {}
    for name, value in pairs(options or {}) do all[name] = value end
    all.uri = uri
    if type(all.args) == "table" then all.args = ngx.encode_args(all.args) end
    for name, kinds in pairs {
        args = "string number", body = "string number", vars = "table", ctx = "table", headers = "table",
        share_all_vars = "boolean", copy_all_vars = "boolean", method = "number",
    } do
        local given = type(all[name])
        if given ~= "nil" and not kinds:find(given, 1, true) then
            if name == "ctx" then raise(("Bad ctx option value type %s, expected a Lua table"):format(given)) end
            if name == "body" then raise("Bad http request body") end
            if name == "method" then raise("Bad http request method") end
            raise(("Bad %s option value"):format(name))
        end
    end
    if type(all.body) == "number" then all.body = tostring(all.body) end
    if all.method then
        all.method = METHODS[all.method] or raise("unsupported HTTP method: " .. tostring(all.method))
    end
    return all
end

ngx.location = {}

function ngx.location.capture(...)
    local n, uri, options = select("#", ...), ...
    counted(n, 1, 2, "expecting one or two arguments")
    return wait(native.capture { asked(0, a_string(1, uri), options) })
end

function ngx.location.capture_multi(...)
    counted(select("#", ...), 1, 1, "only one argument is expected, but got %d")
    local list = a_kind(1, "table", (...))
    if #list == 0 then raise("at least one subrequest should be specified") end
    local all = {}
    for i, one in ipairs(list) do
        if type(one) ~= "table" then
            raise(("the query argument %d is not a table, but a %s"):format(i - 1, type(one)))
        end
        counted(#one, 1, 2, ("query argument %d expecting one or two arguments"):format(i - 1))
        all[i] = asked(i - 1, a_string(1, one[1]), one[2])
    end
    return wait(native.capture(all))
end
