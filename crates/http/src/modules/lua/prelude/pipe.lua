-- `ngx.pipe`: a process is a table with a native handle.

local native = ...
local check, wait, raise, done = native.check, native.wait, native.raise, native.done
local setmetatable, getmetatable, type, tostring = setmetatable, getmetatable, type, tostring
local concat, pairs, ipairs, tonumber = table.concat, pairs, ipairs, tonumber

local methods = {}
local class = { __index = methods }

local function of(process)
    if type(process) ~= "table" or getmetatable(process) ~= class then raise("not a process instance") end
    return process.process
end

-- A time in milliseconds.
local function a_time(value, what)
    if value == nil then return nil end
    if type(value) ~= "number" or not (value >= 0 and value < 2 ^ 32) then raise("bad " .. what .. " option") end
    return value
end

local function set_timeouts(process, write, stdout, stderr, till_end)
    native.pipe_timeouts(
        process, a_time(write, "write_timeout"), a_time(stdout, "stdout_read_timeout"),
        a_time(stderr, "stderr_read_timeout"), a_time(till_end, "wait_timeout"))
end

function methods.set_timeouts(self, ...) set_timeouts(of(self), ...) end

function methods.pid(self) return native.pipe_pid(of(self)) end

function methods.wait(self) return wait(native.pipe_wait(of(self))) end

function methods.kill(self, signal)
    local process = of(self)
    if type(signal) ~= "number" then raise("bad signal arg: number expected, got " .. tostring(signal)) end
    if not (signal > -2 ^ 31 and signal < 2 ^ 31) then return nil, "invalid signal" end
    return done(native.pipe_kill(process, signal - signal % 1))
end

local ENDS = { stdin = 0, stdout = 1, stderr = 2 }

function methods.shutdown(self, direction)
    local process = of(self)
    local number = ENDS[direction]
    if not number then raise("bad shutdown arg: " .. tostring(direction)) end
    return done(native.pipe_shut(process, number))
end

function methods.write(self, data)
    local process = of(self)
    local kind = type(data)
    if kind == "table" then
        data = concat(data)
    elseif kind ~= "string" and kind ~= "number" then
        raise("bad data arg: string, number, or table expected, got " .. kind)
    end
    return wait(native.pipe_write(process, data))
end

local function reader(number, kind, what)
    if not what then
        return function(self) return wait(native.pipe_read(of(self), number, kind, 0)) end
    end
    return function(self, many)
        local process = of(self)
        if type(many) ~= "number" or not (many >= 0 and many < 2 ^ 31) then raise("bad " .. what .. " argument") end
        if many < 1 then
            if kind == "any" then raise("bad max argument") end
            return ""
        end
        return wait(native.pipe_read(process, number, kind, many - many % 1))
    end
end

for name, number in pairs { stdout = 1, stderr = 2 } do
    methods[name .. "_read_all"] = reader(number, "all")
    methods[name .. "_read_line"] = reader(number, "line")
    methods[name .. "_read_bytes"] = reader(number, "bytes", "len")
    methods[name .. "_read_any"] = reader(number, "any", "max")
end

local function arguments_of(args)
    if type(args) == "string" then return { "/bin/sh", "-c", args } end
    if type(args) ~= "table" then raise("bad args arg: table expected, got " .. type(args)) end
    local list = {}
    for i = 1, #args do
        list[i] = type(args[i]) == "string" and args[i] or tostring(args[i])
    end
    if not list[1] then raise("bad args arg: non-empty table expected") end
    return list
end

local function environment_of(environ)
    if environ == nil then return nil end
    if type(environ) ~= "table" then raise("bad environ option: table expected, got " .. type(environ)) end
    local list = {}
    for i = 1, #environ do
        local pair = environ[i]
        if pair == nil then break end
        if type(pair) ~= "string" then
            raise(("bad value at index %d of environ option: string expected, got %s"):format(i, type(pair)))
        end
        if not pair:find("=", 2, true) then
            raise(("bad value at index %d of environ option: 'name=[value]' format expected, got '%s'"):format(i, pair))
        end
        list[i] = pair
    end
    return list
end

local function spawn(args, options)
    if ngx.get_phase() == "init" then raise("API disabled in the current context") end
    args = arguments_of(args)
    options = options or {}
    local room = options.buffer_size == nil and 4096 or tonumber(options.buffer_size)
    if not (room and room >= 1 and room < 2 ^ 31) then raise("bad buffer_size option") end
    local environ = environment_of(options.environ)
    for _, name in ipairs { "write_timeout", "stdout_read_timeout", "stderr_read_timeout", "wait_timeout" } do
        a_time(options[name], name)
    end
    local process, why =
        check(native.pipe_spawn(args, environ, options.merge_stderr and true or false, room - room % 1))
    if not process then return nil, why end
    set_timeouts(
        process, options.write_timeout, options.stdout_read_timeout, options.stderr_read_timeout, options.wait_timeout)
    return setmetatable({ process = process }, class)
end

local pipe = { version = "0.1.31", spawn = spawn }
package.preload["ngx.pipe"] = function() return pipe end
