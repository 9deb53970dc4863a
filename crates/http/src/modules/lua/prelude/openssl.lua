-- Certificates and keys as OpenSSL objects, which libraries expect: a stack of X509, and an
-- EVP_PKEY. Without OpenSSL on the
-- machine, scripts get weir's own objects.

local native = ...
local type, pcall, setmetatable, concat = type, pcall, setmetatable, table.concat

local FUNCTIONS = [[
    void *weir_x509_read(void **, const unsigned char **, long) __asm__("d2i_X509");
    int weir_x509_write(const void *, unsigned char **) __asm__("i2d_X509");
    void weir_x509_free(void *) __asm__("X509_free");
    void *weir_key_read(void **, const unsigned char **, long) __asm__("d2i_AutoPrivateKey");
    int weir_key_write(const void *, unsigned char **) __asm__("i2d_PrivateKey");
    void weir_key_free(void *) __asm__("EVP_PKEY_free");
    void *weir_x509s_new(void) __asm__("OPENSSL_sk_new_null");
    int weir_x509s_push(void *, const void *) __asm__("OPENSSL_sk_push");
    int weir_x509s_size(const void *) __asm__("OPENSSL_sk_num");
    void *weir_x509s_at(const void *, int) __asm__("OPENSSL_sk_value");
    void weir_x509s_free(void *, void (*)(void *)) __asm__("OPENSSL_sk_pop_free");
]]

local ffi, openssl = native.ffi, nil

-- OpenSSL, once it is loaded.
local function library()
    if not openssl and native.has_openssl then
        ffi.cdef(FUNCTIONS)
        openssl = ffi.C
    end
    return openssl
end

local function free_stack(stack) openssl.weir_x509s_free(stack, openssl.weir_x509_free) end

local function bytes_of(text)
    local bytes = ffi.new("unsigned char[?]", #text)
    ffi.copy(bytes, text, #text)
    return bytes
end

local function stack_of(der)
    local bytes = bytes_of(der)
    local at, last = ffi.new("const unsigned char *[1]", bytes), bytes + #der
    local stack = ffi.gc(openssl.weir_x509s_new(), free_stack)
    while at[0] < last do
        local certificate = openssl.weir_x509_read(nil, at, last - at[0])
        if certificate == nil then return nil end
        openssl.weir_x509s_push(stack, certificate)
    end
    return stack
end

local function key_of(der)
    local bytes = bytes_of(der)
    local key = openssl.weir_key_read(nil, ffi.new("const unsigned char *[1]", bytes), #der)
    return key ~= nil and ffi.gc(key, openssl.weir_key_free) or nil
end

local function written(write, object)
    local size = write(object, nil)
    if size <= 0 then return "" end
    local bytes = ffi.new("unsigned char[?]", size)
    write(object, ffi.new("unsigned char *[1]", bytes))
    return ffi.string(bytes, size)
end

local function der_of_stack(stack)
    local all = {}
    for i = 0, openssl.weir_x509s_size(stack) - 1 do
        all[#all + 1] = written(openssl.weir_x509_write, openssl.weir_x509s_at(stack, i))
    end
    return concat(all)
end

local function der_of_key(key) return written(openssl.weir_key_write, key) end

-- weir's own objects, by the OpenSSL objects that stand for them.
local own = setmetatable({}, { __mode = "k" })

local function object(make)
    return function(handle, der)
        if not library() or not der then return handle end
        local ok, made = pcall(make, der)
        if not ok or made == nil then return handle end
        own[made] = handle
        return made
    end
end

local function certificate_of(der)
    local bytes = bytes_of(der)
    local certificate = openssl.weir_x509_read(nil, ffi.new("const unsigned char *[1]", bytes), #der)
    return certificate ~= nil and ffi.gc(certificate, openssl.weir_x509_free) or nil
end

native.certificate_object, native.key_object = object(stack_of), object(key_of)
native.single_certificate_object = object(certificate_of)

-- weir's own object for a script's value; nil if the value is neither that nor an OpenSSL object.
local function handle(der_of, parse)
    return function(value)
        if type(value) == "userdata" then return value end
        if type(value) ~= "cdata" or value == nil then return nil end
        if own[value] then return own[value] end
        if not library() then return nil end
        local ok, der = pcall(der_of, value)
        if not ok then return nil end
        local _, found = parse(der)
        return found
    end
end

native.certificate_handle = handle(der_of_stack, function(der) return native.ssl_parse_cert(der, false) end)
native.key_handle = handle(der_of_key, function(der) return native.ssl_parse_key(der, false) end)
