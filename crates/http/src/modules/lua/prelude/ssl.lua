-- The modules `ngx.ssl` and `ngx.ssl.clienthello`.

local native = ...
local check, raise, a_string, a_number = native.check, native.raise, native.a_string, native.a_number
local answered, done = native.answered, native.done
local type, pairs, ipairs, byte, require = type, pairs, ipairs, string.byte, require

local ssl = {
    version = "0.1.31",
    SSL3_VERSION = 0x0300, TLS1_VERSION = 0x0301, TLS1_1_VERSION = 0x0302,
    TLS1_2_VERSION = 0x0303, TLS1_3_VERSION = 0x0304,
}
package.preload["ngx.ssl"] = function() return ssl end

local function a_cert(i, cert)
    return native.certificate_handle(cert) or native.refuse(i, "certificate expected, got " .. type(cert))
end

local function a_key(i, key)
    return native.key_handle(key) or native.refuse(i, "private key expected, got " .. type(key))
end

-- Calls a native function with a handle of the object. Without an object, what `parse_pem_cert` and
-- kin return for a wrong text, the error is the second result.
local function set_cert(set, cert)
    if cert == nil then return nil, "invalid certificate chain" end
    return done(check(set(a_cert(1, cert))))
end

local function set_key(set, key)
    if key == nil then return nil, "invalid private key" end
    return done(check(set(a_key(1, key))))
end

-- A bounded cache of objects by their texts, so that handshakes need not parse them again.
local KEPT = 256
local objects, count = {}, 0

local function parsed(kind, text, is_pem, parse, to_der, to_object)
    local known = objects[kind] and objects[kind][text]
    if known then return known end
    local handle, why = check(parse(text, is_pem))
    if why then return nil, why end
    -- Loads OpenSSL.
    require "ffi"
    if not native.has_openssl then return handle end
    local object = to_object(handle, is_pem and to_der(text) or text)
    if count >= KEPT then objects, count = {}, 0 end
    objects[kind] = objects[kind] or {}
    objects[kind][text], count = object, count + 1
    return object
end

local function parsed_cert(kind, text, is_pem)
    return parsed(kind, text, is_pem, native.ssl_parse_cert, native.ssl_cert_to_der, native.certificate_object)
end

local function parsed_key(kind, text, is_pem)
    return parsed(kind, text, is_pem, native.ssl_parse_key, native.ssl_key_to_der, native.key_object)
end

function ssl.cert_pem_to_der(pem) return answered(native.ssl_cert_to_der(a_string(1, pem))) end

function ssl.priv_key_pem_to_der(pem, passphrase)
    return answered(native.ssl_key_to_der(a_string(1, pem), passphrase and a_string(2, passphrase)))
end

function ssl.parse_pem_cert(pem) return parsed_cert("cert pem", a_string(1, pem), true) end
function ssl.parse_der_cert(der) return parsed_cert("cert der", a_string(1, der), false) end
function ssl.parse_pem_priv_key(pem) return parsed_key("key pem", a_string(1, pem), true) end
function ssl.parse_der_priv_key(der) return parsed_key("key der", a_string(1, der), false) end

function ssl.clear_certs() return done(check(native.ssl_clear_certs())) end
function ssl.set_cert(cert) return set_cert(native.ssl_set_cert, cert) end
function ssl.set_priv_key(key) return set_key(native.ssl_set_key, key) end
function ssl.set_der_cert(der) return done(check(native.ssl_set_der_cert(a_string(1, der)))) end
function ssl.set_der_priv_key(der) return done(check(native.ssl_set_der_key(a_string(1, der)))) end

function ssl.verify_client(client_certs, depth, trusted_certs)
    depth = depth and a_number(2, depth)
    client_certs = client_certs and a_cert(1, client_certs)
    trusted_certs = trusted_certs and a_cert(3, trusted_certs)
    return done(check(native.ssl_verify_client(client_certs, depth, trusted_certs)))
end

function ssl.server_name() return answered(check(native.ssl_server_name())) end
function ssl.server_port() return answered(check(native.ssl_server_port())) end
function ssl.raw_server_addr() return check(native.ssl_address(true)) end
function ssl.raw_client_addr() return check(native.ssl_address(false)) end

function ssl.get_tls1_version() return answered(check(native.ssl_version())) end

local names = {
    [0x0002] = "SSLv2", [0x0300] = "SSLv3", [0x0301] = "TLSv1", [0x0302] = "TLSv1.1", [0x0303] = "TLSv1.2",
    [0x0304] = "TLSv1.3",
}

function ssl.get_tls1_version_str()
    local version, why = ssl.get_tls1_version()
    if not version then return nil, why end
    return names[version]
end

function ssl.get_client_random(length)
    length = length == nil and 32 or a_number(1, length)
    local random, why = check(native.ssl_client_random())
    if not random then return nil, why end
    if length == 0 then return #random end
    return random:sub(1, length)
end

function ssl.get_req_shared_ssl_ciphers() return answered(check(native.ssl_shared_ciphers())) end

-- OpenSSL has these functions, rustls has not.
for name, what in pairs {
    get_server_random = "the server's random bytes", get_session_master_key = "secrets of a session",
    export_keying_material = "secrets of a session", export_keying_material_early = "secrets of a session",
    get_req_ssl_pointer = "a connection of OpenSSL", get_upstream_ssl_pointer = "a connection of OpenSSL",
} do
    local why = "not supported: there is no access to " .. what
    ssl[name] = function() return nil, why end
end

function ssl.ssl_session_reused() return nil, "bad ssl" end

-- The module `ngx.ssl.proxysslcert`: the functions above for the certificate that upstream servers
-- get.

local to_server = { version = ssl.version }
function to_server.clear_certs() return done(check(native.server_clear_certs())) end
function to_server.set_cert(cert) return set_cert(native.server_set_cert, cert) end
function to_server.set_priv_key(key) return set_key(native.server_set_key, key) end
function to_server.set_der_cert(der) return done(check(native.server_set_der_cert(a_string(1, der)))) end
function to_server.set_der_priv_key(der) return done(check(native.server_set_der_key(a_string(1, der)))) end

-- The module `ngx.ssl.proxysslverify`.

local verify = { version = ssl.version }
function verify.set_verify_result(result) return done(check(native.server_set_result(a_number(1, result)))) end
function verify.get_verify_result() return answered(check(native.server_result())) end

-- A single certificate, not a stack.
function verify.get_verify_cert()
    local der, why = check(native.server_cert())
    if not der then return nil, why end
    local handle
    handle, why = check(native.ssl_parse_cert(der, false))
    if not handle then return nil, why end
    require "ffi"
    if not native.has_openssl then return handle end
    return native.single_certificate_object(handle, der)
end

-- The module `ngx.proxyssl`: the connection to the upstream server.

local proxy = { version = ssl.version }
for name, number in pairs(ssl) do
    if name:find("_VERSION$") then proxy[name] = number end
end
function proxy.get_tls1_version() return answered(check(native.server_version())) end
function proxy.get_tls1_version_str()
    local version, why = proxy.get_tls1_version()
    if not version then return nil, why end
    return names[version]
end

if not native.of_sessions then
    for name, module in pairs {
        ["ngx.ssl.proxysslcert"] = to_server, ["ngx.ssl.proxysslverify"] = verify, ["ngx.proxyssl"] = proxy,
    } do
        package.preload[name] = function() return module end
    end
end

local hello = { version = ssl.version }
package.preload["ngx.ssl.clienthello"] = function() return hello end

local SERVER_NAME, VERSIONS = 0, 43

local function extension(kind) return check(native.hello_extension(kind)) end

function hello.get_client_hello_ext(kind) return extension(a_number(1, kind)) end

-- Parses the extension: the length of the list, then the type, length and text of its first name.
function hello.get_client_hello_server_name()
    local list = extension(SERVER_NAME)
    if not list then return nil end
    local a, b, kind, c, d = byte(list, 1, 5)
    if not d or a * 256 + b ~= #list - 2 or kind ~= 0 or c * 256 + d + 5 > #list or #list < 6 then
        return nil, "Bad SSL Client Hello Extension"
    end
    return list:sub(6, c * 256 + d + 5)
end

function hello.get_client_hello_ext_present()
    local all = check(native.hello_extensions())
    return all[1] and all or nil
end

function hello.get_client_hello_ciphers() return check(native.hello_ciphers()) end

-- In reverse order: the client's last version comes first.
function hello.get_supported_versions()
    local list = extension(VERSIONS)
    if not list or list == "" or byte(list) ~= #list - 1 then return nil end
    local all = {}
    for i = #list - 1, 2, -2 do
        all[#all + 1] = names[byte(list, i) * 256 + byte(list, i + 1)]
    end
    return all
end

function hello.set_protocols(versions)
    if type(versions) ~= "table" then raise("table expected, got " .. type(versions)) end
    local wanted, known = {}, {}
    for _, name in pairs(names) do known[name] = true end
    for _, name in ipairs(versions) do
        if not known[name] then return nil, "invalid protocols failed" end
        wanted[name] = true
    end
    check(native.hello_set_versions(wanted["TLSv1.2"] or false, wanted["TLSv1.3"] or false))
    return true
end

-- The module `ngx.ssl.session`.

if not native.of_sessions then
    package.preload["ngx.ssl.session"] = function()
        return {
            version = ssl.version,
            get_session_id = function() return answered(check(native.ssl_session_id())) end,
            get_serialized_session = function() return answered(check(native.ssl_session_get())) end,
            set_serialized_session = function(session)
                return done(check(native.ssl_session_set(a_string(1, session))))
            end,
        }
    end
end
