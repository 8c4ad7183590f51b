-- Eloquent in Wireshark and tshark: every field that docs/protocol.md defines.
--
--   tshark -X lua_script:analysis/wireshark/eloquent.lua -r capture.pcapng -Y eloquent -V
--   Wireshark: copy this file into the personal Lua plugins folder
--              (Help, About Wireshark, Folders), then Analyze, Reload Lua Plugins.
--
-- UDP ports 4433 to 4439 are decoded as Eloquent; on other ports a datagram is recognised by its
-- version byte, kind, size and checksum. "Decode As..." binds any further UDP port.

local VERSION, LEAST, MOST = 0xE2, 18, 1200
local HEADER, SHORT_HEADER, INSTANCE, CHECKSUM = 14, 10, 4, 4 -- an ACK has no time
local MAX_TOKEN, MAX_RANGES = 1024, 32
local MAX_VALUE = UInt64(0, 0x10000) -- 2^48
local DATA, ACK, PING, CANCEL = 1, 2, 3, 4
local FIRST_PORT, LAST_PORT = 4433, 4439

local KINDS = { [DATA] = "DATA", [ACK] = "ACK", [PING] = "PING", [CANCEL] = "CANCEL" }
local SIDES = { [0] = "client", [1] = "server" }
local ENDS = { [0] = "the stream goes on", "stop", "length", "error", "cancelled" }
local REASONS = { [0] = "reader", "unknown stream", "busy", "too large", "complete" }

local eloquent = Proto("eloquent", "Eloquent Token Stream")

local f = {
    version = ProtoField.uint8("eloquent.version", "Version", base.HEX),
    from_server = ProtoField.uint8("eloquent.from_server", "Sent by", base.DEC, SIDES, 0x80),
    reserved = ProtoField.uint8("eloquent.reserved", "Reserved", base.HEX, nil, 0x70),
    kind = ProtoField.uint8("eloquent.kind", "Kind", base.DEC, KINDS, 0x0F),
    stream_id = ProtoField.uint64("eloquent.stream_id", "Stream id", base.HEX),
    sent_at = ProtoField.uint32("eloquent.sent_at", "Sent at (µs, salted)", base.DEC),
    instance = ProtoField.uint32("eloquent.instance", "Instance of the server's stream", base.HEX),
    first = ProtoField.uint64("eloquent.first", "First index", base.DEC),
    count = ProtoField.uint64("eloquent.count", "Tokens", base.DEC),
    index = ProtoField.uint64("eloquent.token.index", "Index", base.DEC),
    length = ProtoField.uint64("eloquent.token.length", "Length", base.DEC),
    token = ProtoField.bytes("eloquent.token", "Bytes"),
    text = ProtoField.string("eloquent.token.text", "Text"),
    ending = ProtoField.uint8("eloquent.end", "End", base.DEC, ENDS),
    total = ProtoField.uint64("eloquent.total", "Total", base.DEC),
    next = ProtoField.uint64("eloquent.next", "Next index", base.DEC),
    echo = ProtoField.uint32("eloquent.echo", "Echo of sent at", base.DEC),
    delay = ProtoField.uint64("eloquent.delay", "Delay (µs)", base.DEC),
    ranges = ProtoField.uint64("eloquent.ranges", "Ranges beyond next", base.DEC),
    gap = ProtoField.uint64("eloquent.range.gap", "Gap", base.DEC),
    size = ProtoField.uint64("eloquent.range.length", "Length", base.DEC),
    from = ProtoField.uint64("eloquent.range.first", "First index", base.DEC),
    upto = ProtoField.uint64("eloquent.range.last", "Last index", base.DEC),
    reason = ProtoField.uint8("eloquent.reason", "Reason", base.DEC, REASONS),
    checksum = ProtoField.uint32("eloquent.checksum", "Checksum (CRC-32)", base.HEX),
    correct = ProtoField.bool("eloquent.checksum.correct", "Checksum is correct"),
}
eloquent.fields = f

local malformed = ProtoExpert.new(
    "eloquent.malformed", "Malformed datagram", expert.group.MALFORMED, expert.severity.ERROR)
local wrong_sum = ProtoExpert.new(
    "eloquent.checksum.wrong", "The checksum does not match",
    expert.group.CHECKSUM, expert.severity.ERROR)
eloquent.experts = { malformed, wrong_sum }

-- CRC-32 of IEEE 802.3, in the table form that handles one byte at a time.
local crc_table = {}
for byte = 0, 255 do
    local value = byte
    for _ = 1, 8 do
        local odd = bit.band(value, 1) == 1
        value = bit.rshift(value, 1)
        if odd then value = bit.bxor(value, 0xEDB88320) end
    end
    crc_table[byte] = value
end

local function crc32(bytes)
    local value = 0xFFFFFFFF
    for place = 1, #bytes do
        local low = bit.band(bit.bxor(value, bytes:byte(place)), 0xFF)
        value = bit.bxor(bit.rshift(value, 8), crc_table[low])
    end
    -- bit results are signed in Wireshark's Lua.
    return bit.bxor(value, 0xFFFFFFFF) % 0x100000000
end

local function checksum_matches(buffer)
    local body = buffer:len() - CHECKSUM
    return crc32(buffer:raw(0, body)) == buffer(body, CHECKSUM):uint()
end

-- Reads the body up to the checksum. `fault` says in words what is wrong; then all reads give nil.
local Cursor = {}
Cursor.__index = Cursor

function Cursor.new(buffer, stop)
    return setmetatable({ buffer = buffer, at = HEADER, stop = stop }, Cursor)
end

function Cursor:take(size, what)
    if self.fault then return nil end
    if self.at + size > self.stop then
        self.fault = what .. " runs past the end of the datagram"
        return nil
    end
    local range = self.buffer(self.at, size)
    self.at = self.at + size
    return range
end

-- A varint of RFC 9000, section 16: its bytes, and its value as UInt64.
function Cursor:varint(what)
    local head = self:take(1, what)
    if not head then return nil end
    local size = bit.lshift(1, bit.rshift(head:uint(), 6))
    local start = self.at - 1
    if size > 1 and not self:take(size - 1, what) then return nil end
    local range = self.buffer(start, size)
    local high = bit.band(head:uint(), 0x3F)
    local value = UInt64(high)
    for place = start + 1, start + size - 1 do
        value = value * 256 + self.buffer(place, 1):uint()
    end
    local least = ({ [1] = 0, [2] = 64, [4] = 16384, [8] = 1073741824 })[size]
    if value < UInt64(least) then
        self.fault = what .. " is not in its shortest form"
    elseif value > MAX_VALUE then
        self.fault = what .. " is above 2^48"
    end
    return range, value
end

local function one_line(text)
    return (text:gsub("%c", function(c) return string.format("\\x%02x", c:byte()) end))
end

local function data_body(cursor, tree)
    local range, first = cursor:varint("first index")
    if not range then return "" end
    tree:add(f.first, range, first)
    local count
    range, count = cursor:varint("number of tokens")
    if not range then return "" end
    tree:add(f.count, range, count)
    local index, done = first, UInt64(0)
    while done < count and not cursor.fault do
        local start = cursor.at
        local length
        range, length = cursor:varint("token length")
        if not range or cursor.fault then break end
        if length > UInt64(MAX_TOKEN) then
            cursor.fault = "a token has " .. tostring(length) .. " bytes, more than 1024"
            break
        end
        local size = length:tonumber()
        local content = size > 0 and cursor:take(size, "token")
        if cursor.fault then break end
        local text = content and content:string(ENC_UTF_8) or ""
        local branch = tree:add(eloquent, cursor.buffer(start, cursor.at - start),
            "Token " .. tostring(index) .. ': "' .. one_line(text) .. '"')
        branch:add(f.index, range, index):set_generated()
        branch:add(f.length, range, length)
        if content then
            branch:add(f.token, content)
            branch:add(f.text, content, text)
        end
        index, done = index + 1, done + 1
    end
    local ending = cursor:take(1, "end")
    if not ending then return "" end
    local reason = ending:uint()
    tree:add(f.ending, ending)
    if not ENDS[reason] then
        cursor.fault = "end reason " .. reason .. " is unknown"
    elseif reason > 0 then
        tree:add(f.total, ending, index):set_generated()
    elseif count == UInt64(0) then
        cursor.fault = "neither tokens nor an end"
    end
    local info = " first=" .. tostring(first) .. " count=" .. tostring(count)
    return reason > 0 and info .. " end=" .. (ENDS[reason] or reason) or info
end

local function state_body(cursor, tree)
    local range, next_index = cursor:varint("next index")
    if not range then return "" end
    tree:add(f.next, range, next_index)
    local echo = cursor:take(4, "echo")
    if not echo then return "" end
    tree:add(f.echo, echo)
    local delay, count
    range, delay = cursor:varint("delay")
    if not range then return "" end
    tree:add(f.delay, range, delay)
    range, count = cursor:varint("number of ranges")
    if not range then return "" end
    tree:add(f.ranges, range, count)
    if count > UInt64(MAX_RANGES) then
        cursor.fault = tostring(count) .. " ranges, more than 32"
        return ""
    end
    local from = next_index
    for _ = 1, count:tonumber() do
        local start = cursor.at
        local gap_range, gap = cursor:varint("gap")
        local size_range, size = cursor:varint("range")
        if not gap_range or not size_range then break end
        if gap == UInt64(0) or size == UInt64(0) then
            cursor.fault = "an empty gap or range"
            break
        end
        from = from + gap
        local last = from + size - 1
        local whole = cursor.buffer(start, cursor.at - start)
        local branch = tree:add(eloquent, whole,
            "Range: " .. tostring(from) .. " to " .. tostring(last))
        branch:add(f.gap, gap_range, gap)
        branch:add(f.size, size_range, size)
        branch:add(f.from, whole, from):set_generated()
        branch:add(f.upto, whole, last):set_generated()
        from = last + 1
    end
    return " next=" .. tostring(next_index) .. " ranges=" .. tostring(count)
end

local function cancel_body(cursor, tree)
    local reason = cursor:take(1, "cancel reason")
    if not reason then return "" end
    tree:add(f.reason, reason)
    local name = REASONS[reason:uint()]
    if not name then cursor.fault = "cancel reason " .. reason:uint() .. " is unknown" end
    return " " .. (name or reason:uint())
end

local BODIES = { [DATA] = data_body, [ACK] = state_body, [PING] = state_body, [CANCEL] = cancel_body }

function eloquent.dissector(buffer, pinfo, root)
    local size, captured = buffer:reported_len(), buffer:len()
    -- Not ours: other protocols use these ports too.
    if size < LEAST or size > MOST or captured < HEADER then return 0 end
    if buffer(0, 1):uint() ~= VERSION then return 0 end
    local cut = captured < size -- by a snap length
    pinfo.cols.protocol = "Eloquent"
    local tree = root:add(eloquent, buffer())
    local head = buffer(1, 1)
    local kind, server = bit.band(head:uint(), 0x0F), bit.band(head:uint(), 0x80) ~= 0
    tree:add(f.version, buffer(0, 1))
    tree:add(f.from_server, head)
    tree:add(f.reserved, head)
    tree:add(f.kind, head)
    tree:add(f.stream_id, buffer(2, 8))
    if kind ~= ACK then tree:add(f.sent_at, buffer(10, 4)) end

    local cursor, info = Cursor.new(buffer, cut and captured or size - CHECKSUM), ""
    if kind == ACK then cursor.at = SHORT_HEADER end
    if bit.band(head:uint(), 0x70) ~= 0 then
        cursor.fault = string.format("reserved bits are set in 0x%02x", head:uint())
    elseif not BODIES[kind] then
        cursor.fault = "kind " .. kind .. " is unknown"
    else
        if server and kind ~= CANCEL then
            local instance = cursor:take(INSTANCE, "instance")
            if instance then tree:add(f.instance, instance) end
        end
        info = BODIES[kind](cursor, tree)
        if not cut and not cursor.fault and cursor.at < cursor.stop then
            cursor.fault = (cursor.stop - cursor.at) .. " bytes follow the message"
        end
    end

    if cut then
        cursor.fault = nil -- that the rest is missing is the capture's fault
        info = info .. " [captured in part]"
    else
        local correct = checksum_matches(buffer)
        local sum = tree:add(f.checksum, buffer(size - CHECKSUM, CHECKSUM))
        tree:add(f.correct, buffer(size - CHECKSUM, CHECKSUM), correct):set_generated()
        if not correct then sum:add_proto_expert_info(wrong_sum) end
    end
    if cursor.fault then tree:add_proto_expert_info(malformed, cursor.fault) end
    local side = server and "server" or "client"
    local text = (KINDS[kind] or "kind " .. kind) .. " from " .. side .. info
    pinfo.cols.info = text .. (cursor.fault and " [" .. cursor.fault .. "]" or "")
    tree:append_text(", " .. text)
    return captured
end

local function heuristic(buffer, pinfo, root)
    local size = buffer:len()
    if size < buffer:reported_len() then return false end -- no checksum to tell by
    if size < LEAST or size > MOST or buffer(0, 1):uint() ~= VERSION then return false end
    local head = buffer(1, 1):uint()
    if bit.band(head, 0x70) ~= 0 or not BODIES[bit.band(head, 0x0F)] then return false end
    if not checksum_matches(buffer) then return false end
    eloquent.dissector(buffer, pinfo, root)
    return true
end

eloquent:register_heuristic("udp", heuristic)
local ports = DissectorTable.get("udp.port")
for port = FIRST_PORT, LAST_PORT do ports:add(port, eloquent) end
ports:add_for_decode_as(eloquent)
