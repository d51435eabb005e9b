use magnus::{Error, RModule, Ruby};

pub fn init(_ruby: &Ruby, _candle: RModule) -> Result<(), Error> {
    Ok(())
}
