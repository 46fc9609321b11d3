// SPDX-License-Identifier: Apache-2.0
//! The Lua scripts. Each runs as one step, and all its keys are in one slot of a cluster.

use std::sync::LazyLock;

use redis::{Cmd, Script};

/// A script and its hash.
pub(super) struct LuaScript {
    text: &'static str,
    compiled: LazyLock<Script>,
}

/// A call of a script.
#[derive(Clone)]
pub(super) struct Call {
    script: &'static LuaScript,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $text:expr) => {
        $(#[$doc])*
        pub(super) static $name: LuaScript = LuaScript { text: $text, compiled: LazyLock::new(|| Script::new($text)) };
    };
}

/// A script that changes the pictures. First it forgets some that have expired, and `make_room` forgets more while there is no room. A member of the
/// index is a digest of 64 digits, a colon, and the size in decimal; its score is when the picture expires. `total` are the bytes of all members.
/// The score of a session of a picture is when its use ends.
macro_rules! image_script {
    ($head:literal, $text:literal) => {
        concat!(
            $head,
            "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local total = tonumber(redis.call('GET', KEYS[2]) or '0')
local function cost(member) return tonumber(string.sub(member, 66)) + 256 end
local function forget(member)
  if redis.call('ZREM', KEYS[1], member) == 1 then total = total - cost(member) end
end
local function end_uses(sessions) redis.call('ZREMRANGEBYSCORE', sessions, '-inf', string.format('%.0f', now)) end
local function hold(sessions, member)
  local expires = string.format('%.0f', now + tonumber(ARGV[1]))
  if redis.call('ZADD', KEYS[1], expires, member) == 1 then total = total + cost(member) end
  -- others may use a picture for ever
  end_uses(sessions)
  redis.call('ZADD', sessions, expires, ARGV[3])
  redis.call('PEXPIRE', sessions, ARGV[1])
end
local function forget_expired()
  local expired = redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 100)
  for _, member in ipairs(expired) do forget(member) end
  return #expired > 0
end
local function make_room(bytes)
  while total + bytes > tonumber(ARGV[2]) and forget_expired() do end
end
forget_expired()
",
            $text
        )
    };
}

script! {
    /// Keys: list, stream, use, deletion, index. Arguments: length, birth and last uid of the position (length 0: no position), milliseconds of the TTL,
    /// session, 1 if in use, milliseconds since the session began, number of finished uids, finished uids, elements. Returns 1 (stored), 0
    /// (behind) or -1 (gone).
    APPEND,
    "#!lua
local length = redis.call('LLEN', KEYS[1])
local expected = tonumber(ARGV[1])
local birth = ARGV[2]
local finished = tonumber(ARGV[8])
local first = 9 + finished
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if expected == 0 then
  if length > 0 then return 0 end
  birth = string.sub(ARGV[first], 1, 16)
  local deletion = redis.call('GET', KEYS[4])
  if deletion and (string.sub(deletion, 1, 16) == birth or now - tonumber(ARGV[7]) < tonumber(string.sub(deletion, 17))) then return -1 end
else
  if length == 0 then return -1 end
  if string.sub(redis.call('LINDEX', KEYS[1], 0), 1, 16) ~= birth then return -1 end
  if length ~= expected then return 0 end
  if string.sub(redis.call('LINDEX', KEYS[1], -1), 1, 16) ~= ARGV[3] then return 0 end
end
local at = first
while at <= #ARGV do
  local to = math.min(at + 999, #ARGV)
  redis.call('RPUSH', KEYS[1], unpack(ARGV, at, to))
  at = to + 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if finished > 0 then
  local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  if newest then
    local id = newest[1]
    local keep = math.min(now - tonumber(ARGV[4]), tonumber(string.sub(id, 1, string.find(id, '-', 1, true) - 1)))
    redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f', math.max(keep, 0)))
  end
  for i = 9, 8 + finished do
    redis.call('XADD', KEYS[2], '*', 's', ARGV[5], 'b', birth, 'l', ARGV[i])
  end
end
if ARGV[6] == '1' then
  redis.call('ZADD', KEYS[3], now, ARGV[5])
else
  redis.call('ZREM', KEYS[3], ARGV[5])
end
redis.call('ZADD', KEYS[5], now, ARGV[5])
if expected == 0 then
  local expired = redis.call('ZRANGE', KEYS[5], '-inf', string.format('%.0f', now - tonumber(ARGV[4])), 'BYSCORE', 'LIMIT', 0, 10)
  if #expired > 0 then redis.call('ZREM', KEYS[5], unpack(expired)) end
end
return 1"
}

script! {
    /// Keys: list. Arguments: length, birth and last uid of the position (length 0: no position), most entries, bytes after which no
    /// more entries are read. Returns nil, or start, length and elements.
    FETCH,
    "#!lua flags=no-writes
local length = redis.call('LLEN', KEYS[1])
if length == 0 then return nil end
local start = tonumber(ARGV[1])
if start > length then start = 0 end
if start > 0 and string.sub(redis.call('LINDEX', KEYS[1], 0), 1, 16) ~= ARGV[2] then start = 0 end
if start > 0 and string.sub(redis.call('LINDEX', KEYS[1], start - 1), 1, 16) ~= ARGV[3] then start = 0 end
local last = math.min(length, start + tonumber(ARGV[4]))
local budget = tonumber(ARGV[5])
local elements = {}
local at = start
while at < last and budget > 0 do
  local to = math.min(at + 16, last)
  for _, element in ipairs(redis.call('LRANGE', KEYS[1], at, to - 1)) do
    elements[#elements + 1] = element
    budget = budget - #element
  end
  at = to
end
return {start, length, elements}"
}

script! {
    /// Keys: deletion. Returns nil, or the birth and the milliseconds since the deletion.
    DELETION,
    "#!lua flags=no-writes
local deletion = redis.call('GET', KEYS[1])
local at = deletion and tonumber(string.sub(deletion, 17))
if not at then return nil end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {string.sub(deletion, 1, 16), math.max(now - at, 0)}"
}

script! {
    /// Keys: deletion. Arguments: birth, milliseconds of the deletion, milliseconds of the TTL.
    RESTORE_DELETION,
    "#!lua flags=allow-oom
local time = redis.call('TIME')
local at = tonumber(ARGV[2])
local left = at + tonumber(ARGV[3]) - time[1] * 1000 - math.floor(time[2] / 1000)
local known = redis.call('GET', KEYS[1])
if left > 0 and not (known and tonumber(string.sub(known, 17)) >= at) then
  redis.call('SET', KEYS[1], ARGV[1] .. string.format('%.0f', at), 'PX', string.format('%.0f', left))
end
return 1"
}

script! {
    /// Keys: any of the partition. Returns the milliseconds of the clock.
    NOW,
    "#!lua flags=no-writes
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)"
}

script! {
    /// Keys: stream. Arguments: first id, limit. Returns the number of trimmed elements, the id of the first element and elements.
    FINISHED,
    "#!lua flags=no-writes
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, '', {}} end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
local facts = {}
for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
local first = facts['first-entry']
return {
  facts['entries-added'] - facts['length'],
  first and first[1] or '',
  redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
}"
}

script! {
    /// Keys: list, use, deletion, index. Arguments: birth, session, milliseconds of the TTL. Returns whether it was deleted. Runs when memory is full, because it frees memory.
    DELETE,
    "#!lua flags=allow-oom
local time = redis.call('TIME')
redis.call('SET', KEYS[3], ARGV[1] .. string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), 'PX', ARGV[3])
local first = redis.call('LINDEX', KEYS[1], 0)
if not first or string.sub(first, 1, 16) ~= ARGV[1] then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[4], ARGV[2])
return 1"
}

script! {
    /// Keys: use, index, lists. Arguments: milliseconds of the TTL, sessions.
    RENEW,
    "#!lua flags=allow-oom
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 2, #ARGV do
  if redis.call('PEXPIRE', KEYS[i + 1], ARGV[1]) == 1 then
    redis.call('ZADD', KEYS[1], now, ARGV[i])
    redis.call('ZADD', KEYS[2], now, ARGV[i])
  end
end
return 1"
}

script! {
    /// Keys: sweep, use. Arguments: idle milliseconds, milliseconds until the next sweep, limit. Returns sessions with their scores.
    IDLE,
    "#!lua flags=allow-oom
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[2]) then return {} end
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[1])
if until_ms < 0 then return {} end
return redis.call('ZRANGE', KEYS[2], '-inf', string.format('%.0f', until_ms), 'BYSCORE', 'LIMIT', 0, ARGV[3], 'WITHSCORES')"
}

script! {
    /// Keys: index. Arguments: 1 for the newest first, first score or nothing, limit, milliseconds of the TTL. Returns sessions with their
    /// scores, without those whose lists have expired.
    LIST,
    "#!lua flags=no-writes
local time = redis.call('TIME')
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[4]) + 1
local from = tonumber(ARGV[2])
if ARGV[1] == '1' then
  from = from and string.format('%.0f', from) or '+inf'
  return redis.call('ZRANGE', KEYS[1], from, string.format('%.0f', oldest), 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[3], 'WITHSCORES')
end
from = string.format('%.0f', math.max(from or oldest, oldest))
return redis.call('ZRANGE', KEYS[1], from, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[3], 'WITHSCORES')"
}

script! {
    /// Keys: use. Arguments: session, score.
    END_USE,
    "#!lua flags=allow-oom
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) == tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
return 1"
}

script! {
    /// Keys: claim. Arguments: owner, milliseconds of the lease. Returns 1 if the owner has the claim.
    CLAIM,
    "#!lua flags=allow-oom
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1"
}

script! {
    /// Keys: meta. Arguments: fleet id, schema and partitions of a ledger that has none. Returns those of the ledger.
    META,
    "#!lua flags=allow-oom
local fields = {'fleet', 'schema', 'partitions'}
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'fleet', ARGV[1], 'schema', ARGV[2], 'partitions', ARGV[3])
end
return redis.call('HMGET', KEYS[1], unpack(fields))"
}

script! {
    /// Keys: index, total, then a picture and its sessions for each. Arguments: milliseconds of the TTL, most bytes, birth of the session, then
    /// digest and size of each picture. Returns the bytes that are free, then 1 for each picture that exists, and 0 for the others.
    HOLD_IMAGES,
    image_script!("#!lua flags=allow-oom", "
local answer = {0}
local absent = 0
for i = 4, #ARGV do
  local image = KEYS[2 * i - 5]
  if redis.call('PEXPIRE', image, ARGV[1]) == 1 then
    hold(KEYS[2 * i - 4], ARGV[i])
    answer[#answer + 1] = 1
  else
    -- the server may have evicted it
    forget(ARGV[i])
    absent = absent + cost(ARGV[i])
    answer[#answer + 1] = 0
  end
end
make_room(absent)
redis.call('SET', KEYS[2], string.format('%.0f', total))
answer[1] = string.format('%.0f', math.max(tonumber(ARGV[2]) - total, 0))
return answer")
}

script! {
    /// Keys: index, total, picture, its sessions. Arguments: milliseconds of the TTL, most bytes, birth of the session, digest and size of the
    /// picture, its bytes. Returns whether it is stored.
    PUT_IMAGE,
    image_script!("#!lua", "
if redis.call('EXISTS', KEYS[3]) == 0 then
  forget(ARGV[4])
  make_room(cost(ARGV[4]))
  if total + cost(ARGV[4]) > tonumber(ARGV[2]) then
    redis.call('SET', KEYS[2], string.format('%.0f', total))
    return 0
  end
  redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[1])
end
redis.call('PEXPIRE', KEYS[3], ARGV[1])
hold(KEYS[4], ARGV[4])
redis.call('SET', KEYS[2], string.format('%.0f', total))
return 1")
}

script! {
    /// Keys: pictures. Returns them, nil for those that do not exist.
    IMAGES,
    "#!lua flags=no-writes
local images = {}
for i = 1, #KEYS do
  images[i] = redis.call('GET', KEYS[i])
end
return images"
}

script! {
    /// Keys and arguments: those of [`HOLD_IMAGES`], and no birth for all sessions. Ends the use of the pictures, and removes the pictures that no other session uses.
    RELEASE_IMAGES,
    image_script!("#!lua flags=allow-oom", "
for i = 4, #ARGV do
  local sessions = KEYS[2 * i - 4]
  if ARGV[3] == '' then
    redis.call('UNLINK', sessions)
  else
    end_uses(sessions)
    redis.call('ZREM', sessions, ARGV[3])
  end
  if redis.call('EXISTS', sessions) == 0 then
    redis.call('UNLINK', KEYS[2 * i - 5])
    forget(ARGV[i])
  end
end
redis.call('SET', KEYS[2], string.format('%.0f', total))
return 1")
}

script! {
    /// Keys: mark. A write without an effect that lasts. `WAIT` after it waits for all earlier writes of the server.
    MARK,
    "#!lua flags=allow-oom
redis.call('SET', KEYS[1], '1', 'PX', 1000)
return 1"
}

impl LuaScript {
    /// The command after which the server knows the script.
    pub(super) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.text);
        command
    }
}

impl Call {
    pub(super) fn new(script: &'static LuaScript) -> Self {
        Self { script, keys: Vec::new(), arguments: Vec::new() }
    }

    pub(super) fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.keys.push(key.into());
        self
    }

    pub(super) fn arg(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(super) fn number(self, number: u64) -> Self {
        self.arg(number.to_string())
    }

    /// Its bytes, without those of the protocol.
    pub(super) fn bytes(&self) -> usize {
        self.keys.iter().chain(&self.arguments).map(Vec::len).sum()
    }

    /// The command that names the script by its hash. A server without the script answers `NOSCRIPT`.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", self.script.compiled.get_hash())
    }

    /// The command that contains the script. The server keeps the script.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        // elements are large, so that a buffer that grows would copy them several times
        let parts = self.keys.len() + self.arguments.len();
        let mut command = Cmd::with_capacity(3 + parts, name.len() + script.len() + 8 + self.bytes());
        command.arg(name).arg(script).arg(self.keys.len());
        for part in self.keys.iter().chain(&self.arguments) {
            command.arg(&part[..]);
        }
        command
    }
}
