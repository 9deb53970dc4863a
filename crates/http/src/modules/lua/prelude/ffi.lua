-- Libraries such as `resty.sha256` take OpenSSL functions from `ffi.C`, since nginx is linked with
-- OpenSSL. weir is not, so the
-- first `require "ffi"` loads OpenSSL. Without OpenSSL such a function is an undefined symbol.

local native = ...
local ffi, pcall = require "ffi", pcall
local openssl

native.ffi = ffi

-- Libraries declare functions with these types. The functions themselves do not exist here.
ffi.cdef [[
    typedef unsigned char u_char;
    typedef struct { size_t len; const unsigned char *data; } ngx_str_t;
    typedef struct ngx_http_request_s ngx_http_request_t;
    typedef struct { int len; const unsigned char *data; } ngx_http_lua_ffi_str_t;
    typedef struct ngx_stream_lua_request_s ngx_stream_lua_request_t;
    typedef struct { int len; const unsigned char *data; } ngx_stream_lua_ffi_str_t;
]]

package.loaded.ffi = nil

function package.preload.ffi()
    for _, name in ipairs { "libcrypto.so.3", "libcrypto.so.1.1", "crypto" } do
        local ok, library = pcall(ffi.load, name, true)
        if ok then
            -- The library stays loaded as long as this variable refers to it.
            openssl = library
            native.has_openssl = true
            break
        end
    end
    return ffi
end
