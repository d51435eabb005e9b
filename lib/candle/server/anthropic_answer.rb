# frozen_string_literal: true

module Candle
  class Server
    # A message of Anthropic's API as it comes into being, and the events that tell of it in a stream: what is streamed
    # is what is answered at once. The first events wait for the first text, so that an error before it has a status of
    # its own.
    #
    # @api private
    class AnthropicAnswer
      # @param message [Hash] what is known of it from the beginning
      # @param emit [Proc, nil] takes the text of an event
      def initialize(message, emit = nil)
        @message = message
        @emit = emit
        @content = []
        @waiting = +""
      end

      # White space waits for what comes next: before a tool call it is left out.
      #
      # @param piece [String]
      # @return [void]
      def text(piece)
        @waiting << piece
        write(@waiting.slice!(0, @waiting.rstrip.size))
      end

      # Ends the text, tells of calls, and of the whole.
      #
      # @param text [String, nil] all that stands around the calls
      # @param calls [Array<Hash>] blocks of the type `tool_use`
      # @param ending [Hash] `stop_reason`, `stop_sequence`
      # @param usage [Hash]
      # @return [Hash] the message
      def finish(text, calls:, ending:, usage:)
        write(calls.empty? ? @waiting : behind(text.to_s))
        end_text
        calls.each { |call| add_call(call) }
        begin_message
        tell("message_delta", delta: ending, usage: usage)
        tell("message_stop")
        @message.merge(content: @content, **ending, usage: usage)
      end

      private

      def begin_message
        return if @begun

        @begun = true
        tell("message_start", message: @message)
      end

      def write(text)
        return if text.empty?

        unless @text
          @text = +""
          add_block({ type: "text", text: "" })
        end
        @text << text
        tell("content_block_delta", index: 0, delta: { type: "text_delta", text: text })
      end

      # What a model writes behind its first call, which a stream has not shown yet.
      def behind(text)
        shown = @text.to_s.lstrip
        text.start_with?(shown) ? text.delete_prefix(shown) : ""
      end

      def end_text
        return unless @text

        @content[0] = { type: "text", text: @text }
        tell("content_block_stop", index: 0)
      end

      def add_call(call)
        index = @content.size
        add_block(call.merge(input: {}))
        @content[index] = call
        ["", JSON.generate(call[:input])].each do |piece|
          tell("content_block_delta", index: index, delta: { type: "input_json_delta", partial_json: piece })
        end
        tell("content_block_stop", index: index)
      end

      def add_block(block)
        begin_message
        tell("content_block_start", index: @content.size, content_block: block)
        tell("ping") if @content.empty?
        @content << block
      end

      def tell(type, **facts)
        @emit&.call(Stream.event({ type: type, **facts }, event: type))
      end
    end
  end
end
