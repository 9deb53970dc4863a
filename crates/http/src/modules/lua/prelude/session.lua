-- Scripts of `stream`: what is another there than for requests.

local native = ...
if not native.of_sessions then return end

local check, wait, raise, refuse = native.check, native.wait, native.raise, native.refuse
local a_count, a_kind, methods = native.a_count, native.a_kind, native.tcp_methods
local setmetatable, type, ipairs = setmetatable, type, ipairs

ngx.config.subsystem = "stream"
ngx.config.ngx_lua_version = 19

for _, name in ipairs {
    "location", "header", "resp", "redirect", "exec", "send_headers", "run_worker_thread", "arg",
} do
    ngx[name] = nil
end

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

for _, name in ipairs { "receive", "receiveany" } do
    local receive = methods[name]
    client[name] = function(self, ...)
        self.consumed = true
        return receive(self, ...)
    end
end

function client.receiveuntil(self, ...)
    self.consumed = true
    return methods.receiveuntil(self, ...)
end

-- What was written before goes out first.
function client.send(...)
    wait(native.flush())
    return methods.send(...)
end

function client.peek(...)
    local self, size = ...
    size = a_count(2, a_kind(2, "number", size))
    if ngx.get_phase() ~= "preread" then raise("API disabled in the current context") end
    if self.consumed then raise("attempt to peek on a consumed socket") end
    if size == 0 then return "" end
    local data, why = wait(native.session_peek(self.socket, size))
    if type(why) == "number" then return wait(native.exit(why)) end
    if not data then return nil, why end
    return data
end

function client.shutdown(self, direction)
    if direction ~= "send" then refuse(2, "unknown direction") end
    wait(native.flush())
    if native.session_shut_down(a_kind(1, "table", self).socket) then return 1 end
    return nil, "already shutdown"
end

-- A client of datagrams: what can be received is one of them.

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
    socket = function()
        local found, why = check(native.session_client())
        if not found then return nil, why end
        if found == true then return setmetatable({}, datagrams) end
        return setmetatable({ socket = found, connected = true }, client)
    end,
}
