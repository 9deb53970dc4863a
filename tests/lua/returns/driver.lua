-- Runs the call of the request's body, and says what it returned. Lines of preparation end with `;;`.
local function show(v, depth)
    local kind = type(v)
    if v == ngx.null then return "null" end
    if kind == "string" then
        if #v > 200 then v = v:sub(1, 200) .. "..." end
        return '"' .. v:gsub('[%c"\\\128-\255]', function(c) return ("\\%d"):format(c:byte()) end) .. '"'
    end
    if kind == "number" or kind == "boolean" or kind == "nil" then return tostring(v) end
    if kind ~= "table" then return kind end
    if depth > 2 then return "{...}" end
    local keys, parts = {}, {}
    for k in pairs(v) do keys[#keys + 1] = k end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for i, k in ipairs(keys) do parts[i] = (type(k) == "string" and k or "[" .. show(k, 9) .. "]") .. "=" .. show(v[k], depth + 1) end
    return "{" .. table.concat(parts, ", ") .. "}"
end
local function shown(ok, ...)
    local all = {}
    for i = 1, select("#", ...) do all[i] = show((select(i, ...)), 0) end
    return (ok and "" or "error ") .. table.concat(all, " ")
end
local function pack(...) return ... end
ngx.req.read_body()
local line = ngx.req.get_body_data()
local d = ngx.shared.d
local setup, call = line:match("^(.-)%s*;;%s*(.*)$")
if not call then setup, call = "", line end
d:flush_all() d:set("s", "v") d:set("f", "v", 0, 5) d:set("n", 1) d:set("t", true) d:lpush("l", 1)
local chunk, err = loadstring("local d, P, pack, E = ...\n" .. setup .. " return pack(" .. call .. ")", "=case")
ngx.print("\nreturned ", chunk and shown(pcall(chunk, d, tonumber(ngx.var.server_port), pack, tonumber(ngx.var.echo))) or "syntax " .. err)

