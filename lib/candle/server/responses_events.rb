# frozen_string_literal: true

module Candle
  class Server
    # The events of a response that is streamed, in the order and with the numbers that OpenAI's clients expect. The
    # first of them wait for the first text, so that an error before it has a status of its own.
    #
    # @api private
    class ResponsesEvents
      # @param response [Hash] what is known of it from the beginning
      # @param message_id [String] of the text, if there will be one
      # @param emit [Proc] takes the text of an event
      def initialize(response, message_id, emit)
        @response = response
        @message_id = message_id
        @emit = emit
        @number = -1
      end

      # @param piece [String] of what the model thinks
      # @return [void]
      def reasoning(piece)
        begin_reasoning
        tell("response.reasoning_text.delta", item_id: @reasoning_id, output_index: 0, content_index: 0, delta: piece)
      end

      # @param piece [String]
      # @param logprobs [Array<Hash>] of the tokens that it is made of
      # @return [void]
      def text(piece, logprobs = [])
        begin_message
        tell("response.output_text.delta", **place, delta: piece, logprobs: logprobs)
      end

      # Ends the text, tells of calls, and of the whole.
      #
      # @param response [Hash] the response as it has become
      # @return [void]
      def finish(response)
        begin_response
        response[:output].each_with_index do |item, index|
          case item[:type]
          when "message" then end_message(item)
          when "reasoning" then end_reasoning(item)
          else call(item, index)
          end
        end
        name = response[:status] == "completed" ? "response.completed" : "response.incomplete"
        tell(name, response: response)
      end

      private

      def begin_response
        return if @begun

        @begun = true
        tell("response.created", response: @response)
        tell("response.in_progress", response: @response)
      end

      def begin_reasoning
        return if @reasoning_id

        begin_response
        @reasoning_id = "rs_#{@message_id.split("_").last}"
        item = { type: "reasoning", id: @reasoning_id, status: "in_progress", summary: [], content: [] }
        tell("response.output_item.added", output_index: 0, item: item)
      end

      def end_reasoning(item)
        begin_reasoning
        item[:id] = @reasoning_id
        text = item[:content].first[:text]
        tell("response.reasoning_text.done", item_id: @reasoning_id, output_index: 0, content_index: 0, text: text)
        tell("response.output_item.done", output_index: 0, item: item)
      end

      # Reasoning comes before the message.
      def message_index
        @reasoning_id ? 1 : 0
      end

      def begin_message
        return if @message_begun

        begin_response
        @message_begun = true
        item = { type: "message", id: @message_id, status: "in_progress", role: "assistant", content: [] }
        tell("response.output_item.added", output_index: message_index, item: item)
        tell("response.content_part.added", **place, part: { type: "output_text", text: "", annotations: [],
                                                             logprobs: [] })
      end

      def end_message(item)
        begin_message
        part = item[:content].first
        tell("response.output_text.done", **place, text: part[:text], logprobs: part[:logprobs])
        tell("response.content_part.done", **place, part: part)
        tell("response.output_item.done", output_index: message_index, item: item)
      end

      def call(item, index)
        about = { item_id: item[:id], output_index: index }
        tell("response.output_item.added", output_index: index, item: item.merge(status: "in_progress", arguments: ""))
        tell("response.function_call_arguments.delta", **about, delta: item[:arguments])
        tell("response.function_call_arguments.done", **about, name: item[:name], arguments: item[:arguments])
        tell("response.output_item.done", output_index: index, item: item)
      end

      def place
        { item_id: @message_id, output_index: message_index, content_index: 0 }
      end

      def tell(type, **facts)
        @emit.call(Stream.event({ type: type, sequence_number: @number += 1, **facts }, event: type))
      end
    end
  end
end
