-- Libraries such as `resty.sha256` take functions of OpenSSL from `ffi.C`, since nginx is linked with it. weir is not, so
-- the first `require "ffi"` loads OpenSSL for all. Where there is none, such a function is an undefined symbol.

local native = ...
local ffi, pcall = require "ffi", pcall
local openssl

native.ffi = ffi

-- Libraries name these types, and find out then that a function of C which takes them is not there.
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
            -- The library stays as long as this variable.
            openssl = library
            native.has_openssl = true
            break
        end
    end
    return ffi
end
