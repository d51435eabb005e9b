# frozen_string_literal: true

module Candle
  # An answer of a model that has tools.
  #
  # @!attribute tool_calls
  #   @return [Array<ToolCall>]
  # @!attribute tool_results
  #   @return [Array<Hash>] `{tool_call:, result:, error:}` for each call, when they were executed
  # @!attribute text_response
  #   @return [String, nil] the answer without the calls
  # @!attribute raw_response
  #   @return [String] the answer as the model gave it, without its reasoning
  # @!attribute completion
  #   @return [Completion, nil] the run
  ToolCallResult = Struct.new(:tool_calls, :tool_results, :text_response, :raw_response, :completion,
                              keyword_init: true) do
    # @return [String, nil] what the model thought before
    def reasoning
      completion.reasoning if completion.respond_to?(:reasoning)
    end

    # @return [Boolean]
    def has_tool_calls? # rubocop:disable Naming/PredicateName
      !Array(tool_calls).empty?
    end

    # @return [Boolean] whether no call failed
    def success?
      Array(tool_results).all? { |result| result[:error].nil? }
    end

    # @return [String] one line
    def inspect
      calls = Array(tool_calls).map(&:name).join(", ")
      "#<Candle::ToolCallResult #{calls.empty? ? "no calls" : calls} #{raw_response.to_s[0, 40].inspect}>"
    end
  end
end
