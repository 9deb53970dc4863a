-- `ngx.run_worker_thread` and properties of the server.

local native = ...
local check, wait = native.check, native.wait
local select, type = select, type

-- Errors are returned as values.

function ngx.run_worker_thread(...)
    local n, pool, module, name = select("#", ...), ...
    if n < 3 then return false, "expecting at least 3 arguments" end
    if type(pool) ~= "string" then return false, "threadpool should be a string" end
    if type(module) ~= "string" then return false, "module name should be a string" end
    if type(name) ~= "string" then return false, "function name should be a string" end
    local why = check(native.worker_thread(...))
    if why then return false, why end
    return wait()
end

-- The server.

ngx.worker = {
    pid = function() return native.worker_pid end,
    id = function() return native.worker_id end,
    count = function() return native.worker_count end,
    exiting = native.worker_exiting,
}

ngx.config = {
    debug = false,
    subsystem = "http",
    nginx_version = 1031005,
    ngx_lua_version = 10032,
    prefix = function() return native.prefix end,
    nginx_configure = function() return native.configured end,
}

-- `init_by_lua` sees the environment of the start, as in nginx's master.
local getenv = os.getenv

function os.getenv(name)
    local value = getenv(name)
    if ngx.get_phase() ~= "init" then
        os.getenv = getenv
    elseif value == nil then
        return native.first_env(name)
    end
    return value
end
