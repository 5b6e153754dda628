//! The slots of a Redis Cluster: which one a key has, and which one a command therefore goes to.
//!
//! The `redis` crate knows this too, behind its cluster client; that one chooses the server of each command
//! by itself and does not say which process has answered, and that is what the gate has to know.

use redis::{Arg, Cmd};

/// How many there are.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: of what stands between its first braces, if that is not empty.
/// Source: the Redis Cluster specification.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else {
        return key;
    };
    let behind = &key[open + 1..];
    match behind.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &behind[..close],
    }
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let carried = crc & 0x8000 != 0;
            (crc << 1) ^ if carried { 0x1021 } else { 0 }
        })
    })
}

/// The slot that a command is for, by its first key; all keys of one command have the same tag here.
/// `None`: any server may answer it.
pub fn slot_of_command(command: &Cmd) -> Option<u16> {
    let argument = |number: usize| match command.args_iter().nth(number) {
        Some(Arg::Simple(bytes)) => Some(bytes),
        _ => None,
    };
    let name = argument(0)?.to_ascii_uppercase();
    let key = match name.as_slice() {
        b"EVALSHA" | b"EVAL" => argument(3).filter(|_| argument(2) != Some(b"0")),
        b"TIME" | b"PUBLISH" | b"PING" | b"INFO" | b"SCRIPT" | b"CLUSTER" | b"CONFIG"
        | b"CLIENT" => None,
        _ => argument(1),
    };
    key.map(slot_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redis::cmd;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // As CLUSTER KEYSLOT answers them.
        for (key, slot) in [
            ("foo", 12_182),
            ("bar", 5_061),
            ("somekey", 11_058),
            ("foo{hash_tag}", 2_515),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(
            slot_of(b"{user1000}.following"),
            slot_of(b"{user1000}.followers")
        );
        assert_eq!(slot_of(b"a{}b{c}"), crc16(b"a{}b{c}") % SLOTS);
        assert_eq!(slot_of(b"a{{b}}c"), slot_of(b"{b"));
    }

    #[test]
    fn a_command_goes_where_its_key_is() {
        let slot = |words: &[&str]| slot_of_command(cmd(words[0]).arg(&words[1..]));
        assert_eq!(slot(&["HGET", "foo", "x"]), Some(12_182));
        assert_eq!(slot(&["xrange", "foo", "-", "+"]), Some(12_182));
        assert_eq!(slot(&["EVALSHA", "abc", "2", "foo", "foo"]), Some(12_182));
        assert_eq!(slot(&["EVAL", "return 1", "0", "argument"]), None);
        assert_eq!(slot(&["TIME"]), None);
        assert_eq!(slot(&["PUBLISH", "changes", "7"]), None);
    }

    proptest! {
        #[test]
        fn any_key_has_a_slot_and_its_tag_decides(key: Vec<u8>, tag in "[a-z:0-9]{1,9}", after in "[a-z{}]{0,9}") {
            prop_assert!(slot_of(&key) < SLOTS);
            prop_assert_eq!(slot_of(format!("p{{{tag}}}{after}").as_bytes()), slot_of(tag.as_bytes()));
        }
    }
}
