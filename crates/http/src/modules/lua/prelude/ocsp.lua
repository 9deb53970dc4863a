-- The module `ngx.ocsp`.

local native = ...
local check, a_string, a_count = native.check, native.a_string, native.a_count

local ocsp = { version = "0.1.31" }
package.preload["ngx.ocsp"] = function() return ocsp end

function ocsp.get_ocsp_responder_from_der_chain(chain, most)
    local url, why = native.ocsp_responder(a_string(1, chain))
    if not url then return nil, why end
    most = most and a_count(2, most) or #url
    if #url > most then return url:sub(1, most), "truncated" end
    return url
end

function ocsp.create_ocsp_request(chain, most)
    local request, why = native.ocsp_request(a_string(1, chain))
    if not request then return nil, why end
    most = most and a_count(2, most) or #request
    if #request > most then return nil, ("output buffer too small: %d > %d"):format(#request, most) end
    return request
end

function ocsp.validate_ocsp_response(response, chain, longest)
    local good, till, why = native.ocsp_validate(a_string(1, response), a_string(2, chain))
    if good then return true, till end
    return nil, longest and why:sub(1, longest) or why
end

function ocsp.set_ocsp_status_resp(response)
    local asked, why = check(native.ocsp_set(a_string(1, response)))
    if why then return nil, why end
    if not asked then return true, "no status req" end
    return true
end
