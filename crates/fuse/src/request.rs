//! A request as read from the device, and a cursor that takes it apart with checks.
//!
//! Invariants: nothing is read beyond the request; a request that does not fit its opcode is [`Malformed`],
//! never a panic.

use crate::abi::InHeader;
use zerocopy::FromBytes;

/// The request does not have the shape of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Header and body of one request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    pub(crate) body: Body<'a>,
}

impl<'a> Request<'a> {
    /// Splits what was read into header and body; extensions behind the body are left out.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed)?;
        if usize::try_from(header.len) != Ok(bytes.len()) {
            return Err(Malformed);
        }
        let extensions = usize::from(header.total_extlen) * 8;
        let length = rest.len().checked_sub(extensions).ok_or(Malformed)?;
        let body = rest.get(..length).ok_or(Malformed)?;
        Ok(Self { header, body: Body { rest: body, then: None } })
    }

    /// The same of a request that a ring brought: header, fixed arguments and all else lie apart.
    pub(crate) fn parse_parts(
        header: &'a [u8],
        arguments: &'a [u8],
        payload: &'a [u8],
    ) -> Result<Self, Malformed> {
        let (header, _) = InHeader::read_from_prefix(header).map_err(|_| Malformed)?;
        let length = usize::try_from(header.len).map_err(|_| Malformed)?;
        let apart = size_of::<InHeader>() + payload.len();
        let arguments =
            length.checked_sub(apart).and_then(|length| arguments.get(..length)).ok_or(Malformed)?;
        let extensions = usize::from(header.total_extlen) * 8;
        let length = payload.len().checked_sub(extensions).ok_or(Malformed)?;
        let then = payload.get(..length).ok_or(Malformed)?;
        Ok(Self { header, body: Body { rest: arguments, then: Some(then) } })
    }
}

/// What is left of the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    rest: &'a [u8],
    /// What comes after the fixed arguments, where that lies apart.
    then: Option<&'a [u8]>,
}

impl<'a> Body<'a> {
    /// The next structure.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed)?;
        self.rest = rest;
        Ok(value)
    }

    /// What comes after the fixed arguments.
    fn tail(&mut self) -> &'a [u8] {
        if let Some(then) = self.then.take() {
            self.rest = then;
        }
        self.rest
    }

    /// The next bytes up to a NUL, which is consumed too.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        self.tail();
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let (string, rest) = self.rest.split_at_checked(end).ok_or(Malformed)?;
        self.rest = rest.get(1..).ok_or(Malformed)?;
        Ok(string)
    }

    /// The next string as the name of a directory entry: not empty, no slash, neither "." nor "..".
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        match self.lookup_name()? {
            b"." | b".." => Err(Malformed),
            name => Ok(name),
        }
    }

    /// As [`Self::name`], but "." and ".." are allowed: file handles are resolved by looking them up.
    pub(crate) fn lookup_name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        if name.is_empty() || name.contains(&b'/') { Err(Malformed) } else { Ok(name) }
    }

    /// The next `length` bytes.
    pub(crate) fn bytes(&mut self, length: u32) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (bytes, rest) = self.tail().split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Everything that is left.
    pub(crate) fn remaining(&mut self) -> &'a [u8] {
        self.tail()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use zerocopy::IntoBytes;

    /// A request made of its parts, as the kernel would send it.
    pub(crate) fn encode(
        opcode: u32,
        unique: u64,
        nodeid: u64,
        body: &[&[u8]],
        extensions: &[u8],
    ) -> Vec<u8> {
        let body = body.concat();
        let header = InHeader {
            len: u32::try_from(size_of::<InHeader>() + body.len() + extensions.len()).unwrap(),
            opcode,
            unique,
            nodeid,
            uid: 1000,
            gid: 100,
            pid: 42,
            total_extlen: u16::try_from(extensions.len() / 8).unwrap(),
            padding: 0,
        };
        [header.as_bytes(), &body, extensions].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::encode;
    use super::*;
    use crate::abi::{MkdirIn, opcode};
    use zerocopy::IntoBytes;

    fn body(rest: &[u8]) -> Body<'_> {
        Body { rest, then: None }
    }

    /// The parts as a ring brings them: fixed arguments in a field of 128 bytes, the rest elsewhere.
    #[test]
    fn parts_are_read_like_the_whole() {
        let mkdir = MkdirIn { mode: 0o755, umask: 0o22 };
        let whole = encode(opcode::MKDIR, 3, 1, &[mkdir.as_bytes(), b"dir\0"], &[9; 16]);
        let (header, rest) = whole.split_at(size_of::<InHeader>());
        let mut fixed = [7; 128];
        fixed[..8].copy_from_slice(&rest[..8]);
        let mut request = Request::parse_parts(header, &fixed, &rest[8..]).unwrap();
        assert_eq!(request.body.take::<MkdirIn>().unwrap().mode, 0o755);
        assert_eq!(request.body.name().unwrap(), b"dir");
        assert_eq!(request.body.remaining(), b"");
        // No fixed arguments at all.
        let whole = encode(opcode::LOOKUP, 3, 1, &[b"name\0"], &[]);
        let (header, rest) = whole.split_at(size_of::<InHeader>());
        let mut request = Request::parse_parts(header, &fixed, rest).unwrap();
        assert_eq!(request.body.lookup_name().unwrap(), b"name");
        // Lengths that do not fit.
        assert!(Request::parse_parts(header, &fixed, &[0; 200]).is_err());
        let long = encode(opcode::LOOKUP, 3, 1, &[&[0; 200]], &[]);
        assert!(Request::parse_parts(&long[..40], &fixed, &[]).is_err());
        assert!(Request::parse_parts(&long[..39], &fixed, &[]).is_err());
        let extended = encode(opcode::LOOKUP, 3, 1, &[b"n\0"], &[0; 8]);
        assert!(Request::parse_parts(&extended[..40], &fixed, b"n\0").is_err());
    }

    #[test]
    fn extensions_are_left_out() {
        let mkdir = MkdirIn { mode: 0o755, umask: 0o22 };
        let bytes = encode(opcode::MKDIR, 3, 1, &[mkdir.as_bytes(), b"dir\0"], &[9; 16]);
        let mut request = Request::parse(&bytes).unwrap();
        assert_eq!(request.body.take::<MkdirIn>().unwrap().mode, 0o755);
        assert_eq!(request.body.name().unwrap(), b"dir");
        assert_eq!(request.body.remaining(), b"");
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let bytes = encode(opcode::GETATTR, 1, 1, &[&[0; 16]], &[]);
        assert!(Request::parse(&bytes).is_ok());
        assert_eq!(Request::parse(&bytes[..bytes.len() - 1]).unwrap_err(), Malformed);
        assert_eq!(Request::parse(&bytes[..39]).unwrap_err(), Malformed);
        assert_eq!(Request::parse(&[]).unwrap_err(), Malformed);
        let mut extended = bytes.clone();
        extended[36] = 3;
        assert_eq!(Request::parse(&extended).unwrap_err(), Malformed);
    }

    #[test]
    fn names_are_checked() {
        for (name, good) in
            [("a\0", true), ("\0", false), ("a/b\0", false), ("a", false), (".\0", false), ("..\0", false)]
        {
            assert_eq!(body(name.as_bytes()).name().is_ok(), good, "{name:?}");
        }
        assert_eq!(body(b"..\0").lookup_name(), Ok(&b".."[..]));
        assert_eq!(body(b"abc").bytes(4), Err(Malformed));
    }
}
