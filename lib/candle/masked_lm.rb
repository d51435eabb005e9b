# frozen_string_literal: true

Candle::Native.complete(:MaskedLM)

module Candle
  # What could stand where a text has a gap.
  #
  # @example
  #   model = Candle::MaskedLM.from_pretrained("spec/fixtures/tiny/bert-masked")
  #   model.fill("the #{model.mask_token} dog", top_k: 1).first[:token] # => "paris"
  class MaskedLM
    include Model
    include Statistics

    class << self
      # @param source [String, Pathname] a Hugging Face id or a directory
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`, or on the CPU `:int8`; nil is f32 on the CPU and the
      #   checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param max_length [Integer, nil] a lower limit of tokens than the model's
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @return [MaskedLM]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, tokenizer: nil, revision: nil,
                          max_length: nil, verify: nil, token: nil, cache_dir: nil)
        load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer, revision: revision,
                           max_length: Arguments.count(max_length, "max_length"), verify: verify, token: token,
                           cache_dir: cache_dir)
      end
    end

    # @param input [String, Array<String>] each with {#mask_token} where a word is missing
    # @param top_k [Integer] how many proposals to return
    # @return [Array<Hash>, Array<Array>] `{token:, id:, score:, sequence:}`, best first; for a text with several gaps
    #   one such list for each; for an Array of texts what each of them gives
    # @raise [InvalidInputError] for what isn't a text, and for a text without a gap
    def fill(input, top_k: 5)
      texts, single = Arguments.texts(input)
      top_k = Arguments.count(top_k, "top_k") || raise(ArgumentError, "top_k must be a positive Integer, not nil")
      results = texts.map do |text|
        lists = _fill(text, top_k)
        lists.size == 1 ? lists.first : lists
      end
      single ? results.first : results
    end

    # @return [String] what stands for a gap, such as `[MASK]`
    def mask_token
      _mask_token
    end

    # @return [Integer] how many tokens of a text are read, special ones included
    def max_length
      model_info.fetch(:max_length)
    end

    private

    def prove
      fill(mask_token, top_k: 1)
    end
  end
end
