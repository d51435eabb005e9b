# frozen_string_literal: true

module Candle
  # How models are loaded that read images and no texts.
  module ImageLoading
    # @param source [String, Pathname] a Hugging Face id or a directory
    # @param positional_device [Device, String, nil] the same as `device:`
    # @param device [Device, String, Symbol, nil] nil is the best one
    # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`; nil is f32 on the CPU and the checkpoint's on a GPU
    # @param revision [String, nil] a branch, tag or commit of the hub
    # @param token [String, nil] for private and gated models, before `HF_TOKEN`
    # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
    # @return [Model]
    # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
    # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
    # @raise [ArgumentError] for an unknown keyword
    def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, revision: nil, token: nil,
                        cache_dir: nil, **unknown)
      refuse(unknown)
      load_model(source, device: device || positional_device, dtype: dtype, revision: revision, token: token,
                         cache_dir: cache_dir)
    end
  end
end
