-- `ngx.req`.

local native = ...
local check, wait, gathered = native.check, native.wait, native.gathered
local type, tostring, concat, insert = type, tostring, table.concat, table.insert

local METHODS = {
    [2] = "GET", [4] = "HEAD", [8] = "POST", [16] = "PUT", [32] = "DELETE", [64] = "MKCOL",
    [128] = "COPY", [256] = "MOVE", [512] = "OPTIONS", [1024] = "PROPFIND", [2048] = "PROPPATCH",
    [4096] = "LOCK", [8192] = "UNLOCK", [16384] = "PATCH", [32768] = "TRACE",
}
native.METHODS = METHODS

local req = {}
ngx.req = req

function req.get_method() return check(native.method()) end
function req.http_version() return check(native.http_version()) end
function req.raw_header(no_line) return check(native.raw_header(no_line)) end
function req.start_time() return check(native.start_time()) end
function req.is_internal() return check(native.is_internal()) end
function req.read_body() wait(native.read_body()) end
function req.discard_body() return check(native.discard_body()) end
function req.get_body_file() return check(native.body_file()) end
function req.set_body_data(data) return check(native.set_body_data(data)) end

function req.get_body_data(most)
    local data = check(native.body_data())
    if data and most and most > 0 then return data:sub(1, most) end
    return data
end

function req.set_method(method)
    local name = METHODS[method]
    if not name then error("unsupported HTTP method: " .. tostring(method), 2) end
    return check(native.set_method(name))
end

function req.get_headers(most, raw)
    return native.headers(raw, check(native.request_headers(most, raw and true)))
end

function req.set_header(name, value) return check(native.set_request_header(tostring(name), value)) end
function req.clear_header(name) return check(native.set_request_header(tostring(name), nil)) end

function req.add_header(name, value)
    local old = req.get_headers(0)[name]
    local all = type(old) == "table" and old or { old }
    for _, one in ipairs(type(value) == "table" and value or { value }) do insert(all, one) end
    return check(native.set_request_header(name, all))
end

function req.get_uri_args(most)
    return native.named(check(native.uri_args(most)))
end

function req.set_uri_args(args)
    if type(args) == "table" then args = ngx.encode_args(args) end
    return check(native.set_args(tostring(args)))
end

function req.set_uri(uri, jump, binary)
    check(native.set_uri(uri, binary == true))
    if jump then return wait(native.jump()) end
end

function req.get_post_args(most)
    local data = check(native.body_data())
    if data then return ngx.decode_args(data, most) end
    if check(native.body_file()) then return nil, "request body in temp file not supported" end
    return {}
end

-- A body that is put together piece by piece.
local pieces = setmetatable({}, { __mode = "k" })

function req.init_body() pieces[ngx.ctx] = {} end
function req.append_body(data) insert(pieces[ngx.ctx], data) end

function req.finish_body()
    local data = concat(pieces[ngx.ctx])
    pieces[ngx.ctx] = nil
    return check(native.set_body_data(data))
end
