# frozen_string_literal: true

module Candle
  class CLI
    # The options of commands that generate, as the models take them.
    #
    # @api private
    module GenerationOptions
      FIELDS = { max_tokens: :max_length, temperature: :temperature, top_p: :top_p, top_k: :top_k, seed: :seed }.freeze
      private_constant :FIELDS

      private

      def generation_config
        GenerationConfig.balanced(**given_options)
      end

      def given_options
        FIELDS.filter_map { |name, field| [field, options[name]] unless options[name].nil? }.to_h
      end
    end
  end
end
