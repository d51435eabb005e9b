# frozen_string_literal: true

require "securerandom"

module Candle
  class Server
    # A message of Anthropic's API as it comes into being, and the events that tell of it in a stream: what is streamed
    # is what is answered at once. The first events wait for the first text, so that an error before it has a status of
    # its own.
    #
    # @api private
    class AnthropicAnswer
      # What a block of a kind begins with.
      BLOCKS = { reasoning: { type: "thinking", thinking: "", signature: "" }, text: { type: "text", text: "" } }.freeze
      # What a piece of it is called, and its field.
      DELTAS = { reasoning: %i[thinking_delta thinking], text: %i[text_delta text] }.freeze
      private_constant :BLOCKS, :DELTAS

      # @param message [Hash] what is known of it from the beginning
      # @param emit [Proc, nil] takes the text of an event
      def initialize(message, emit = nil)
        @message = message
        @emit = emit
        @content = []
        @places = {}
      end

      # @param kind [Symbol] as {Generation#run} tells it
      # @param value [String, Hash]
      # @return [void]
      def add(kind, value)
        case kind
        when :tool_call then begin_call(value)
        when :arguments then delta({ type: "input_json_delta", partial_json: value[:json] })
        else write(kind, value)
        end
      end

      # Ends the last block, and tells of the whole.
      #
      # @param result [Generation::Result]
      # @param ending [Hash] `stop_reason`, `stop_sequence`
      # @param usage [Hash]
      # @return [Hash] the message
      def finish(result, ending:, usage:)
        end_block
        fill(result.tool_calls)
        begin_message
        tell("message_delta", delta: ending, usage: usage)
        tell("message_stop")
        @message.merge(content: @content.reject { |block| block[:input] == :none }, **ending, usage: usage)
      end

      private

      def begin_message
        return if @begun

        @begun = true
        tell("message_start", message: @message)
      end

      def write(kind, text)
        unless @open == kind
          end_block
          begin_block(kind, BLOCKS.fetch(kind).dup)
        end
        type, field = DELTAS.fetch(kind)
        @content.last[field] += text
        delta({ type: type, field => text })
      end

      def begin_call(about)
        end_block
        @places[about[:index]] = @content.size
        begin_block(:call, { type: "tool_use", id: about[:id] || "toolu_#{SecureRandom.hex(12)}", name: about[:name],
                             input: {} })
        @content.last[:input] = :none
        delta({ type: "input_json_delta", partial_json: "" })
      end

      # What the calls came to; one that was cut off is not part of the message.
      def fill(calls)
        waiting = calls.dup
        @content.each do |block|
          next unless block[:type] == "tool_use"

          block[:input] = waiting.shift.arguments if waiting.first&.name == block[:name]
        end
      end

      def begin_block(kind, block)
        begin_message
        @open = kind
        tell("content_block_start", index: @content.size, content_block: block.dup)
        tell("ping") if @content.empty?
        @content << block
      end

      def end_block
        return unless @open

        if @open == :reasoning
          # Clients send it back with the block; nobody checks it here.
          delta({ type: "signature_delta", signature: "" })
        end
        tell("content_block_stop", index: @content.size - 1)
        @open = nil
      end

      def delta(delta)
        tell("content_block_delta", index: @content.size - 1, delta: delta)
      end

      def tell(type, **facts)
        @emit&.call(Stream.event({ type: type, **facts }, event: type))
      end
    end
  end
end
