//! HMAC-SHA-256 for `jsonwebtoken`, by ring, which TLS needs anyway.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey};
use ring::hmac;
use signature::{Error, Signer, Verifier};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key: &EncodingKey| {
        Ok(Box::new(Hs256::new(*algorithm, key.family(), key.as_bytes())?) as Box<dyn JwtSigner>)
    },
    verifier_factory: |algorithm, key: &DecodingKey| {
        let secret = key.try_get_as_bytes()?;
        Ok(Box::new(Hs256::new(*algorithm, key.family(), secret)?) as Box<dyn JwtVerifier>)
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs the provider. Must run before the first use of `jsonwebtoken`.
pub fn install() {
    // An error means that it is installed.
    let _ = PROVIDER.install_default();
}

struct Hs256(hmac::Key);

impl Hs256 {
    fn new(algorithm: Algorithm, family: AlgorithmFamily, secret: &[u8]) -> Result<Self> {
        if algorithm != Algorithm::HS256 || family != AlgorithmFamily::Hmac {
            return Err(ErrorKind::InvalidAlgorithm.into());
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }
}

impl Signer<Vec<u8>> for Hs256 {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        Ok(hmac::sign(&self.0, message).as_ref().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        hmac::verify(&self.0, message, signature).map_err(|_| Error::new())
    }
}

impl JwtSigner for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}
