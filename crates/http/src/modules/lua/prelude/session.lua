-- Differences of `ngx` in scripts of `stream`.

local native = ...
if not native.of_sessions then return end

local check, wait, raise, refuse = native.check, native.wait, native.raise, native.refuse
local a_count, a_kind, a_string, methods = native.a_count, native.a_kind, native.a_string, native.tcp_methods
local answered = native.answered
local counted, setmetatable, type, ipairs = native.counted, setmetatable, type, ipairs
local select, tonumber = select, tonumber

ngx.config.subsystem = "stream"
ngx.config.ngx_lua_version = 20

for _, name in ipairs {
    "location", "header", "resp", "redirect", "exec", "send_headers", "run_worker_thread", "arg",
} do
    ngx[name] = nil
end

-- `ngx.status` is that of the session, and 0 until its end. `stream` has no head.
function native.getters.status() return tonumber(ngx.var.status) end
function native.getters.headers_sent() end
function native.getters.is_subrequest() end

-- `stream` has no groups of a pattern.
function native.get_group() end

-- Servers of an `upstream`.

local balancer = native.balancer
local set_current_peer = balancer.set_current_peer

function balancer.set_current_peer(address, port, host)
    if host ~= nil then
        raise("bad argument #3 to 'set_current_peer' ('host' not yet implemented in stream subsystem)")
    end
    return set_current_peer(address, port)
end

function balancer.enable_keepalive() raise("'enable_keepalive' not yet implemented in stream subsystem") end
balancer.recreate_request, balancer.set_upstream_tls = nil, nil

-- The client's connection.

local client = {}
client.__index = client
for _, name in ipairs { "settimeout", "settimeouts", "getfd", "getoption", "setoption" } do
    client[name] = methods[name]
end

for _, name in ipairs { "receive", "receiveany", "receiveuntil" } do
    local receive = methods[name]
    client[name] = function(...)
        local self = ...
        if type(self) == "table" then self.consumed = true end
        return receive(...)
    end
end

-- Sends what was written before first.
function client.send(...)
    wait(native.flush())
    return methods.send(...)
end

function client.peek(...)
    local n, self, size = select("#", ...), ...
    counted(n, 2, 2, "expecting 2 arguments (including the object), but got %d")
    if type(size) ~= "number" then raise("argument must be a number") end
    if size < 0 then refuse(2, "bytes can not be negative") end
    size = a_count(2, size)
    local phase = ngx.get_phase()
    if phase ~= "preread" then raise(("API disabled in the context of %s_by_lua*"):format(phase)) end
    if self.consumed then raise("attempt to peek on a consumed socket") end
    if size == 0 then return "" end
    local data, why = wait(native.session_peek(self.socket, size))
    if type(why) == "number" then return wait(native.exit(why)) end
    if not data then return nil, why end
    return data
end

-- Shuts the sending direction down.
function methods.shutdown(...)
    local n, self, direction = select("#", ...), ...
    counted(n, 2, 2, "expecting 2 arguments (including the object) but seen %d")
    if not native.socket_is_open(a_kind(1, "table", self).socket) then return nil, "closed" end
    direction = a_string(2, direction)
    if direction == "" then return nil, "pattern is empty" end
    if direction ~= "send" then refuse(2, "bad shutdown argument: " .. direction) end
    if native.session_shut_down(self.socket) then return 1 end
    return nil, "already shutdown"
end

-- Sends what was written before first.
function client.shutdown(...)
    wait(native.flush())
    return methods.shutdown(...)
end

-- A UDP client. Only its first datagram can be received.

local datagrams = {}
datagrams.__index = datagrams

function datagrams:receive(size)
    local data = check(native.session_take(size and a_count(2, a_kind(2, "number", size)) or nil))
    if data then return data end
    return nil, "no more data"
end

function datagrams:send(data)
    local sent = check(native.session_answer(data))
    if sent then return sent end
    return nil, "closed"
end

function datagrams.settimeout() end
function datagrams.settimeouts() end

ngx.req = {
    start_time = ngx.req.start_time,
    get_original_addr = function() return answered(check(native.session_original_address())) end,
    socket = function()
        local found, why = check(native.session_client())
        if not found then return nil, why end
        if found == true then return setmetatable({}, datagrams) end
        return setmetatable({ socket = found, connected = true }, client)
    end,
}
