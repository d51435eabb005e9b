# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle rerank`.
    #
    # @api private
    class Rerank < Verb
      # @param query [String]
      # @param files [Array<String>]
      # @return [void]
      def call(query, files)
        texts = Records.new(files, field: options[:field]).to_a
        return if texts.empty?

        found = load_model(:reranker, options[:model]).rerank(query, texts, top_k: options[:top])
        found.each do |entry|
          result = { index: entry[:doc_id], score: entry[:score], text: entry[:text] }
          show(result) { puts format("%<score>.4f  %<text>s", result) }
        end
      end
    end
  end
end
