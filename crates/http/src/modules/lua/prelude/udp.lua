-- `ngx.socket.udp`: a socket is a table with a native handle.

local native = ...
local check, wait = native.check, native.wait
local counted = native.counted
local a_string, a_number, a_kind, a_message = native.a_string, native.a_number, native.a_kind, native.a_message
local setmetatable, tonumber, select = setmetatable, tonumber, select

-- Scripts find the methods in the metatable itself.
local methods = {}
methods.__index = methods
local class = methods

-- A socket's native handle, if it has a peer.
local function connected(self)
    local socket = a_kind(1, "table", self).socket
    return socket and native.udp_is_open(socket) and socket
end

function methods.bind(...)
    local n, self, address = select("#", ...), ...
    counted(n, 2, 2, "expecting 2 arguments, but got %d")
    if native.udp_bind(a_kind(1, "table", self).socket, a_string(2, address)) then return 1 end
    return nil, "bad address"
end

function methods.setpeername(...)
    local n, self, host, port = select("#", ...), ...
    counted(n, 2, 3, "ngx.socket.udp setpeername: expecting 2 or 3 arguments (including the object), but seen %d")
    a_kind(1, "table", self)
    host = a_string(2, host)
    port = n == 3 and a_number(3, port) or 0
    if not (port >= 0 and port <= 65535) then return nil, ("bad port number: %d"):format(port) end
    local wrong
    host, port, wrong = native.host_and_port(host, port - port % 1)
    if wrong then return nil, wrong end
    return wait(native.udp_connect(self.socket, host, port))
end

function methods.send(...)
    local n, self, data = select("#", ...), ...
    counted(n, 2, 2, "expecting 2 arguments (including the object), but got %d")
    local socket = connected(self)
    if not socket then return nil, "closed" end
    return wait(native.udp_send(socket, a_message(2, data)))
end

function methods.receive(...)
    local n, self, most = select("#", ...), ...
    counted(n, 1, 2, "expecting 1 or 2 arguments (including the object), but got %d")
    local socket = connected(self)
    if not socket then return nil, "closed" end
    if most ~= nil then
        most = a_number(2, most)
        -- A negative number is a large one in C.
        most = most >= 0 and most < 65536 and most - most % 1 or nil
    end
    return wait(native.udp_receive(socket, most))
end

function methods.close(...)
    local n, self = select("#", ...), ...
    counted(n, 1, 1, "expecting 1 argument (including the object) but seen %d")
    local socket = connected(self)
    if not socket then return nil, "closed" end
    return check(native.udp_close(socket))
end

function methods.settimeout(...)
    local n, self, ms = select("#", ...), ...
    counted(n, 2, 2, "ngx.socket settimeout: expecting at least 2 arguments (including the object) but seen %d")
    ms = tonumber(ms) or 0
    if ms >= 1 and ms < 2 ^ 31 then native.udp_timeout(a_kind(1, "table", self).socket, ms) end
end

function ngx.socket.udp(...)
    counted(select("#", ...), 0, 0, "expecting zero arguments, but got %d")
    return setmetatable({ socket = check(native.udp_new()) }, class)
end
